"""A note on ranks that hold different weights, and none on loops that are right."""

import json
import os
import pickle
import re
import subprocess
import sys

import pytest
import weights_loops
from weights_loops import GOOD, PLANTED, TOGETHER, not_wrapped, not_wrapped_but_a_metric_is_reduced_at_the_end

from labkit.machine import free_port
from labkit.panel.panel import Panel
from labkit.panel.training import TrainingRun
from labkit.panel.training_view import shown
from labkit.worker.events import Weights, decode
from labkit.worker.follower import Follower

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/worker/", "labkit/panel/")]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The events of all loops, by loop and rank: two processes train them one after another."""
    return run_both(tmp_path_factory.mktemp("told"), [*PLANTED, *GOOD])


def run_both(folder, loops, **variables):
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    names = [loop.__name__ for loop in loops]
    ranks = []
    for rank in range(2):
        command = [sys.executable, weights_loops.__file__, str(folder / f"{rank}.json"), *names]
        environment = {**os.environ, **variables, "RANK": str(rank)}
        ranks.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    errors = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors)
    of_rank = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    return {loop: [[*map(decode, events[loop.__name__])] for events in of_rank] for loop in loops}


def notes_of(events, engine="Ray Train"):
    """What the panel of a run says at the end; the ranks' events come in the order of their times."""
    run = TrainingRun("run", engine=engine, world_size=2)
    run.start()
    for event in sorted((event for rank in events for event in rank), key=lambda event: event.at):
        run.apply(event)
    return shown(run, run.now()).notes


@pytest.mark.parametrize("loop", PLANTED, ids=lambda loop: loop.__name__)
def test_different_weights_are_told_with_the_fix(told, loop):
    (note,) = notes_of(told[loop])
    assert note.startswith("the 2 workers hold different weights")
    assert re.search(PLANTED[loop], note), note
    assert "LABKIT_COMPARE_WEIGHTS=0" in note


@pytest.mark.parametrize("loop", GOOD, ids=lambda loop: loop.__name__)
def test_no_word_on_a_loop_that_is_right(told, loop):
    assert notes_of(told[loop]) == []


def test_ranks_of_which_accelerate_sees_one_train_alone_only_if_they_exchange_nothing(tmp_path):
    alone = not_wrapped_but_a_metric_is_reduced_at_the_end
    told = run_both(tmp_path, [alone, *TOGETHER], WITH_ACCELERATE="yes")
    (note,) = notes_of(told.pop(alone))
    assert "trains a model of its own" in note
    assert {loop: notes_of(events) for loop, events in told.items()} == dict.fromkeys(TOGETHER, [])


@pytest.mark.parametrize("compares", [True, False])
def test_the_comparison_can_be_turned_off_where_the_panel_is(monkeypatch, compares):
    monkeypatch.setenv("LABKIT_COMPARE_WEIGHTS", str(int(compares)))
    panel = Panel("run")
    monkeypatch.delenv("LABKIT_COMPARE_WEIGHTS")  # nodes of others don't have the notebook's variables
    monkeypatch.setenv("WORLD_SIZE", "2")
    in_worker = pickle.loads(pickle.dumps(panel.tracker))
    assert (Follower(in_worker)._weights is not None) is compares


def test_a_note_goes_when_the_weights_are_the_same_again():
    """Some methods average the weights after several epochs."""
    run = TrainingRun("run", engine="Ray Train", world_size=2)
    run.start()
    seen = {"is_whole": True, "names": ["weight"], "averaged": [False]}
    notes = []
    for number, norms in enumerate(([1, 1], [2, 3], [3, 4], [5, 5])):
        for rank, norm in enumerate(norms):
            seen |= {"number": number, "steps": 4 * number, "gradients": [0.1 + rank], "at": run.now()}
            run.apply(Weights(**seen, weights=[float(norm)], rank=rank, pid=rank))
        notes.append(shown(run, run.now()).notes)
    assert [len(told) for told in notes] == [0, 0, 1, 0]
    assert "DistributedDataParallel(model)" not in notes[2][0]


@pytest.mark.parametrize(
    ("engine", "wrapping"),
    [
        ("Ray Train", "ray.train.torch.prepare_model(model)"),
        ("TorchDistributor", "torch.nn.parallel.DistributedDataParallel(model)"),
    ],
)
def test_the_fix_is_that_of_the_engine(told, engine, wrapping):
    (note,) = notes_of(told[not_wrapped], engine)
    assert f"model = {wrapping}. " in note
