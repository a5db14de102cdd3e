"""A run of Ray Train on two nodes and its panel: what workers do is seen here, and how a run ends."""

import contextlib
import pickle
import signal
import threading
import traceback

import psutil
import pytest
import ray.data
import ray.train
from loops import interrupt_when, train_loop, trainer_of
from ray.train import CheckpointConfig, FailureConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.util import placement_group_table

from labkit import runs
from labkit.errors import LabError, RunFailed, RunStopped
from labkit.panel.reporters import NullReporter
from labkit.system import family
from labkit.train import TrainPanel
from labkit.train.callbacks import ReportCallback, first_failure
from labs import idle, until

pytestmark = pytest.mark.fault


@pytest.fixture
def panel(home):
    return TrainPanel("run", reporter=NullReporter(), dataset="none", rows=40)


def _controllers(home):
    """Ray Train's controllers on the cluster of this home."""
    ours = {one.pid for one in family.running(home)}
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            titled = "TrainController" in " ".join(process.info["cmdline"] or ())
            if titled and ours & {parent.pid for parent in process.parents()}:
                found.append(process)
    return found


def test_a_run_on_two_nodes_is_seen_whole(lab, home, panel):
    result = panel.fit(trainer_of(home))
    state = panel.state
    assert (state.status, state.world_size, state.engine) == ("finished", 2, "Ray Train")
    assert {worker.node for worker in state.workers.values()} == {"head", "node-2"}
    assert len({worker.pid for worker in state.workers.values()}) == 2
    assert [report["epoch"] for report in state.history] == [0, 1, 2]
    assert {c.status for c in state.checkpoints} == {"committed"}
    assert [c.bytes for c in state.checkpoints] == [1000] * 3
    assert state.printed == 6 and any(line.startswith("[rank 1] epoch") for line in state.prints)
    listed = dict(panel.files())
    assert listed["checkpoints"] == result.path
    assert str(lab.log_dir) in listed["Ray's logs"]
    record = runs.latest("run")
    assert (record.state, record.workers, record.checkpoints) == ("finished", 2, 3)
    assert (record.config["epochs"], record.scaling["num_workers"]) == (3, 2)
    assert record.storage_path == result.path
    # Where the time went: start, steps, and what is between epochs, together the whole.
    assert sum(record.seconds.values()) == pytest.approx(record.seconds_total, rel=0.05)
    assert record.seconds["start"] > 0


def test_what_a_worker_raises_is_shown_with_its_own_lines(lab, home, panel):
    said = "rank 1 raised ArithmeticError: the loss is not a number(.|\n)*goes on from the last checkpoint"
    with pytest.raises(RunFailed, match=said):
        panel.fit(trainer_of(home, breaks=(1, 1, 2)))
    (failure, *_) = panel.state.failures
    assert (failure.rank, panel.state.status) == (1, "failed")
    assert 'raise ArithmeticError("the loss is not a number")' in failure.text
    assert failure.text.startswith("train_loop, ") and "site-packages" not in failure.text
    assert runs.latest("run", state="failed").error == "ArithmeticError: the loss is not a number"
    assert idle(lab)


def test_a_killed_worker_is_one_line_and_its_restart_repeats_steps(lab, home, panel, capfd):
    run = {"failure_config": FailureConfig(max_failures=1)}
    when = home / "heard"

    def heard():
        """What the panel is to know of: the checkpoint of the first epoch, and each step before the death."""
        try:
            until(lambda: panel.state.checkpoints and panel.state.workers and panel.state.made == 7)
        finally:  # else the rank would wait until the test's limit
            when.touch()

    threading.Thread(target=heard, daemon=True).start()
    panel.fit(
        trainer_of(home, run=run, dies=(1, 1, 2), died=str(home / "died-1"), when=str(when), seconds=0.25)
    )
    state = panel.state
    assert [failure.text for failure in state.failures] == ["rank 1 is gone: killed, or out of memory"]
    assert (state.status, len(state.history), state.workers.restarts) == ("finished", 3, 1)
    assert state.repeated == 3  # of its second epoch, after the checkpoint of the first
    assert (state.made, state.workers[0].epoch, state.fraction()) == (12, 2, 1.0)
    assert 0 < runs.latest("run").seconds["restart"] < state.elapsed()
    said = capfd.readouterr()
    assert "A worker died or was killed" not in said.out + said.err
    with pytest.raises(RunFailed) as failed:
        panel.fit(trainer_of(home, dies=(1, 0, 2), died=str(home / "died-2"), when=str(when)))
    assert failed.value.fact == "rank 1 is gone: killed, or out of memory"
    assert f"RunConfig(name={panel.run_id!r}) goes on from the last checkpoint" in failed.value.fix
    assert panel.state.failures[-1].text == failed.value.fact


def test_checkpoints_that_ray_deletes_are_marked_and_a_wrong_order_is_warned_of(lab, home, panel):
    keep = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="rmse")
    with pytest.warns(UserWarning, match='highest rmse.*checkpoint_score_order="min"'):
        panel.fit(trainer_of(home, epochs=4, workers=1, run={"checkpoint_config": keep}))
    assert [checkpoint.deleted for checkpoint in panel.state.checkpoints] == [False, True, True, False]
    assert runs.latest("run").checkpoints == 2


def test_a_name_that_is_used_again_and_trains_nothing_is_told(lab, home, panel):
    run = {"name": "twice"}
    panel.fit(trainer_of(home, epochs=2, workers=1, run=run))
    assert panel.state.note == ""
    again = TrainPanel("again", reporter=NullReporter())
    again.fit(trainer_of(home, epochs=2, workers=1, run=run))
    assert again.state.note.startswith("went on from epoch 2 of 2: nothing trained")
    again.fit(trainer_of(home, epochs=3, workers=1, run=run))
    assert (again.state.note, len(again.state.history)) == ("went on after epoch 2 of 3", 1)


def test_an_interrupt_ends_the_run_and_frees_its_cpus(lab, home, panel):
    interrupt_when(lambda: panel.state.first_step_at)
    with pytest.raises(RunStopped, match="stopped by you") as stopped:
        panel.fit(trainer_of(home, epochs=1000, seconds=0.01))
    assert panel.state.status == "stopped"
    assert idle(lab)
    # `%debug` still finds what was in Ray's frames, and that keeps no process alive.
    frames = [frame for frame, _ in traceback.walk_tb(stopped.value.__context__.__traceback__)]
    assert any("controller" in frame.f_locals for frame in frames)
    until(lambda: not _controllers(home))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_ends_a_run_whose_workers_do_not_start(lab, home, panel, monkeypatch):
    """Ray's controller waits for them, and listens to nothing else meanwhile."""
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "3600")
    trainer = trainer_of(home)
    trainer.scaling_config.resources_per_worker = {"CPU": 1, "tape": 1}
    interrupt_when(lambda: "PENDING" in {group["state"] for group in placement_group_table().values()})
    with pytest.raises(RunStopped, match="stopped by you"):
        panel.fit(trainer)
    assert idle(lab)
    until(lambda: {group["state"] for group in placement_group_table().values()} == {"REMOVED"})
    panel.fit(trainer_of(home))
    assert panel.state.status == "finished"


def test_what_cannot_work_is_refused_before_anything_starts(lab, home, panel):
    with pytest.raises(LabError, match="5 workers with 1 CPU each"):
        panel.watch(trainer_of(home, workers=5))
    with pytest.raises(LabError, match="fed by Ray Data"):
        panel.watch(trainer_of(home, workers=4, datasets={"train": ray.data.range(8)}))
    with pytest.raises(LabError, match="20 workers"):
        panel.watch(trainer_of(home, workers=(20, 30)))
    for wrong in (None, "trainer", DataParallelTrainer, 3):
        with pytest.raises(LabError, match="not a Ray Train trainer"):
            panel.watch(wrong)
    with pytest.raises(LabError, match=r"with panel\.watch\(trainer\)"), TrainPanel("run"):
        pass
    assert panel.state.status == "ready" and idle(lab)
    panel.watch(trainer_of(home, workers=(1, 30)))  # elastic: there is room for the fewest
    assert panel.state.world_size == 30


class NotHere:
    """Can be sent, and not be received."""

    def __reduce__(self):
        return eval, ("missing_module",)


@pytest.mark.parametrize("receiver", ["workers", "controller"])
def test_what_cannot_be_received_leaves_no_worker_behind(lab, home, panel, receiver, monkeypatch):
    """Ray's controller fails then, and leaves its placement group behind."""
    # What a ray.init() that crashed left behind: Ray asks there where it is not told whom to ask.
    monkeypatch.setattr("ray._private.utils.read_ray_address", lambda *_: "127.0.0.1:9")
    secret = NotHere()
    trainer = trainer_of(home, epochs=1, more=secret if receiver == "controller" else None)
    of_workers = secret if receiver == "workers" else None
    trainer.train_loop_per_worker = lambda config: train_loop(config, of_workers)
    with pytest.raises(RunFailed, match=r"the controller of the run raised .*missing_module") as failed:
        panel.fit(trainer)
    assert failed.value.__cause__ is not None
    assert idle(lab)


def test_no_secret_travels_with_a_panel(lab, home, panel):
    token = (home / "ray-token").read_bytes()
    with contextlib.closing(panel.listen()):
        assert token not in pickle.dumps(ReportCallback(panel)) + repr(panel).encode()


class HealthCheckFailed(Exception):
    def __init__(self, message):
        super().__init__("A worker health check failed.")
        self.health_check_failure = ray.exceptions.RayActorError(error_msg=message)


DEAD = HealthCheckFailed("The actor is dead because its worker process has died.")
LOST = HealthCheckFailed("The actor died unexpectedly because its node has died.")
OF_RAY = {"__module__": "ray.train.v2._internal.exceptions"}
HUNG = type("WorkerHealthCheckTimeoutError", (Exception,), OF_RAY)(
    "A worker health check has been hanging for 5 s.\nSet RAY_TRAIN_… to wait longer"
)
GLOO = RuntimeError("Traceback (most recent call last):\n  …\nRuntimeError: Connection closed by peer")


@pytest.mark.parametrize(
    "exceptions, rank, text",
    [
        ({0: GLOO, 1: DEAD}, 1, "rank 1 is gone: killed, or out of memory"),
        ({0: GLOO, 2: LOST}, 2, "rank 2 is gone: its node was lost"),
        ({1: HUNG}, 1, "rank 1 failed: A worker health check has been hanging for 5 s."),
        ({0: GLOO, 1: GLOO}, 0, f"RuntimeError: {GLOO}"),
    ],
)
def test_the_failure_that_caused_the_others_is_told(exceptions, rank, text):
    assert first_failure(exceptions) == (rank, text)
