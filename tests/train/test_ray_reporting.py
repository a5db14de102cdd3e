"""A run of Ray Train and its panel: what workers on two nodes do is seen here, and how a run ends."""

import contextlib
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback

import psutil
import pytest
import ray.data
import ray.train
from ray import cloudpickle
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.util import placement_group_table

from labkit import runs
from labkit.errors import LabError, RunFailed, RunStopped
from labkit.panel.reporters import NullReporter
from labkit.system import family
from labkit.train import TrainPanel
from labs import idle

pytestmark = pytest.mark.fault


# The workers cannot import this file: what is in it travels by value, as from a notebook.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Summary(NullReporter):
    """Keeps what the summary would list."""

    def close(self, snapshot):
        self.files = snapshot.files


@pytest.fixture
def panel(home):
    return TrainPanel("run", reporter=Summary(), dataset="none", rows=40)


def loop(config, _=None):
    """Epochs of five steps in each worker; the panel comes with the configuration."""
    panel, rank = config["panel"], ray.train.get_context().get_world_rank()
    for epoch in range(_epochs_done(), config["epochs"]):
        for step in panel.steps(range(5), epoch=epoch, epochs=config["epochs"]):
            time.sleep(config.get("seconds_per_step", 0.01))
            panel.log(loss=1.0 / (step + 1))
            if config.get("breaks") == (rank, epoch, step):
                raise ArithmeticError("the loss is not a number")
            if config.get("dies") == (rank, epoch, step) and not os.path.exists(config["died"]):
                open(config["died"], "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
        print("epoch", epoch, "is over")
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if rank == 0:
                with open(f"{folder}/weights", "w") as file:
                    file.write("w" * 999)
                with open(f"{folder}/epochs", "w") as file:
                    file.write(str(epoch + 1))
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            metrics = {"epoch": epoch, "loss": 0.5, "rank": rank, "rmse": 5.0 - epoch}
            ray.train.report(metrics, checkpoint=checkpoint)


def _epochs_done():
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder, open(f"{folder}/epochs") as file:
        return int(file.read())


def trainer_of(
    panel, home, *, workers=2, epochs=3, callbacks=True, datasets=None, name=None, run=None, **config
):
    return DataParallelTrainer(
        loop,
        train_loop_config={"panel": panel, "epochs": epochs, **config},
        # One worker on each node: what the second one says has to come a longer way.
        scaling_config=ScalingConfig(num_workers=workers, placement_strategy="SPREAD"),
        datasets=datasets,
        run_config=RunConfig(
            name=name or panel.run_id,
            storage_path=str(home / "runs"),
            callbacks=[panel.callback()] if callbacks else [],
            **run or {},
        ),
    )


def fit(panel, trainer):
    with panel.watch(trainer):
        return trainer.fit()


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
    result = fit(panel, trainer_of(panel, home))
    state = panel.state
    assert (state.status, state.world_size, state.engine) == ("finished", 2, "Ray Train")
    assert {worker.rank for worker in state.workers.values()} == {0, 1}
    assert {worker.node for worker in state.workers.values()} == {"head", "node-2"}
    assert len({worker.pid for worker in state.workers.values()}) == 2
    assert [report["epoch"] for report in state.history] == [0, 1, 2]
    assert len(state.epoch_seconds) == 3 and min(state.epoch_seconds) > 0.05
    assert {c.status for c in state.checkpoints} == {"committed"}
    assert [c.bytes for c in state.checkpoints] == [1000] * 3
    assert state.printed == 6 and any(line.startswith("[rank 1] epoch") for line in state.prints)
    assert result.metrics["epoch"] == 2
    listed = dict(panel._given_reporter.files)
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
    said = (
        "rank 1 raised ArithmeticError: the loss is not a number(.|\n)*logs. Then fit.* goes on from the last"
    )
    with pytest.raises(RunFailed, match=said):
        fit(panel, trainer_of(panel, home, breaks=(1, 1, 2)))
    (failure, *_) = panel.state.failures
    assert (failure.rank, panel.state.status) == (1, "failed")
    assert 'raise ArithmeticError("the loss is not a number")' in failure.text
    assert failure.text.startswith("loop, ") and "site-packages" not in failure.text
    assert runs.latest("run", state="failed").error == "ArithmeticError: the loss is not a number"
    assert idle(lab)


def test_a_killed_worker_is_one_line_and_its_restart_has_seconds(lab, home, panel, capfd):
    run = {"failure_config": FailureConfig(max_failures=1)}
    fit(panel, trainer_of(panel, home, dies=(1, 1, 2), died=str(home / "died-1"), run=run))
    state = panel.state
    assert [failure.text for failure in state.failures] == ["rank 1 is gone: killed, or out of memory"]
    assert (state.status, len(state.history), state.workers.restarts) == ("finished", 3, 1)
    assert 0 < runs.latest("run").seconds["restart"] < state.elapsed()
    said = capfd.readouterr()
    assert "A worker died or was killed" not in said.out + said.err
    panel = TrainPanel("run", reporter=Summary())
    with pytest.raises(RunFailed) as failed:
        fit(panel, trainer_of(panel, home, dies=(1, 0, 2), died=str(home / "died-2")))
    assert failed.value.fact == "rank 1 is gone: killed, or out of memory"
    assert "max_failures=1" in failed.value.fix
    assert f"RunConfig(name={panel.run_id!r}) goes on from the last checkpoint" in failed.value.fix
    assert panel.state.failures[-1].text == failed.value.fact


def test_checkpoints_that_ray_deletes_are_marked_and_a_wrong_order_is_warned_of(lab, home, panel):
    keep = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="rmse")
    trainer = trainer_of(panel, home, epochs=4, workers=1, run={"checkpoint_config": keep})
    with pytest.warns(UserWarning, match='highest rmse.*checkpoint_score_order="min"'):
        fit(panel, trainer)
    assert [checkpoint.deleted for checkpoint in panel.state.checkpoints] == [False, True, True, False]
    assert runs.latest("run").checkpoints == 2
    assert [os.path.isdir(checkpoint.path) for checkpoint in panel.state.checkpoints] == [
        not checkpoint.deleted for checkpoint in panel.state.checkpoints
    ]


def test_epochs_are_those_of_the_trainer_that_is_watched(home, panel):
    for config in ({"epochs": 4}, {}):
        in_this_process = ScalingConfig(num_workers=0)
        panel.watch(DataParallelTrainer(loop, train_loop_config=config, scaling_config=in_this_process))
        assert panel.state.epochs == config.get("epochs")


def test_a_name_that_is_used_again_and_trains_nothing_is_told(lab, home, panel):
    fit(panel, trainer_of(panel, home, epochs=2, workers=1, name="twice"))
    assert panel.state.note == ""
    again = TrainPanel("again", reporter=Summary())
    fit(again, trainer_of(again, home, epochs=2, workers=1, name="twice"))
    assert again.state.note.startswith("went on from epoch 2 of 2: nothing trained")
    fit(again, trainer_of(again, home, epochs=3, workers=1, name="twice"))
    assert (again.state.note, len(again.state.history)) == ("went on after epoch 2 of 3", 1)


def test_an_elastic_training_needs_room_for_the_fewest(lab, home, panel):
    panel.watch(trainer_of(panel, home, workers=(1, 30)))
    assert panel.state.world_size == 30
    with pytest.raises(LabError, match="20 workers"):
        panel.watch(trainer_of(panel, home, workers=(20, 30)))


def test_an_interrupt_ends_the_run_and_frees_its_cpus(lab, home, panel):
    def interrupt():
        while not panel.state.first_step_at:
            time.sleep(0.05)
        signal.pthread_kill(main, signal.SIGINT)

    main = threading.main_thread().ident
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(RunStopped, match="stopped by you") as stopped:
        fit(panel, trainer_of(panel, home, epochs=1000))
    assert panel.state.status == "stopped"
    assert idle(lab)
    # `%debug` still finds what was in Ray's frames, and that keeps no process alive.
    frames = [frame for frame, _ in traceback.walk_tb(stopped.value.__context__.__traceback__)]
    assert any("controller" in frame.f_locals for frame in frames)
    deadline = time.monotonic() + 30
    while _controllers(home):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_ends_a_run_whose_workers_do_not_start(lab, home, panel):
    """Ray's controller waits for them, and listens to nothing else meanwhile."""

    def interrupt():
        while not _controllers(home):
            time.sleep(0.05)
        time.sleep(2)
        signal.pthread_kill(main, signal.SIGINT)

    main = threading.main_thread().ident
    trainer = trainer_of(panel, home)
    trainer.scaling_config.resources_per_worker = {"CPU": 1, "tape": 1}
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(RunStopped, match="stopped by you"):
        fit(panel, trainer)
    assert panel.state.elapsed() < 20
    assert idle(lab)
    assert {group["state"] for group in placement_group_table().values()} == {"REMOVED"}
    fit(panel, trainer_of(panel, home))
    assert panel.state.status == "finished"


def test_a_lost_node_is_a_failure_that_is_told(lab, home, panel):
    """The node is switched off in mid-run: no worker is left to say why."""
    node = lab.add_node(cpus=1, resources={"lost": 1})
    trainer = DataParallelTrainer(
        loop,
        train_loop_config={"panel": panel, "epochs": 1000},
        scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1, "lost": 1}),
        run_config=RunConfig(
            name=panel.run_id, storage_path=str(home / "runs"), callbacks=[panel.callback()]
        ),
    )

    def switch_off():
        while not panel.state.first_step_at:
            time.sleep(0.05)
        lab.remove_node(node)

    thread = threading.Thread(target=switch_off)
    thread.start()
    with pytest.raises(RunFailed) as failed:
        fit(panel, trainer)
    thread.join()
    assert panel.state.failures[-1].message in str(failed.value)
    assert idle(lab)


def test_what_cannot_work_is_refused_before_anything_starts(lab, home, panel):
    with pytest.raises(LabError, match="5 workers with 1 CPU each"):
        panel.watch(trainer_of(panel, home, workers=5))
    data = {"train": ray.data.range(8)}
    with pytest.raises(LabError, match="fed by Ray Data"):
        panel.watch(trainer_of(panel, home, workers=4, datasets=data))
    for wrong in (None, "trainer", DataParallelTrainer, 3):
        with pytest.raises(LabError, match="not a Ray Train trainer"):
            panel.watch(wrong)
    with pytest.raises(LabError, match=r"with panel\.watch\(trainer\)"), TrainPanel("run"):
        pass
    assert panel.state.status == "ready" and idle(lab)


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
    of_workers = secret if receiver == "workers" else None
    trainer = trainer_of(panel, home, epochs=1, more=secret if receiver == "controller" else None)
    trainer.train_loop_per_worker = lambda config: loop(config, of_workers)
    with pytest.raises(RunFailed, match=r"the controller of the run raised .*missing_module") as failed:
        fit(panel, trainer)
    assert failed.value.__cause__ is not None
    assert idle(lab)


def test_without_workers_the_loop_runs_here(lab, home, panel):
    fit(panel, trainer_of(panel, home, workers=0, epochs=2))
    assert (panel.state.engine, panel.state.status) == ("one process", "finished")
    assert len(panel.state.epoch_seconds) == 2


def test_no_secret_travels_with_a_panel(lab, home, panel):
    token = (home / "ray-token").read_bytes()
    with contextlib.closing(panel.listen()):
        assert token not in pickle.dumps(panel.callback()) + pickle.dumps(panel)
        assert token.decode() not in repr(panel)
