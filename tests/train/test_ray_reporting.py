"""`panel.watch`: runs of Ray Train on two nodes, whose loops know nothing of labkit, and how they end."""

import contextlib
import math
import pickle
import signal
import tempfile
import threading
import time
import traceback
from types import SimpleNamespace

import numpy as np
import pytest
import ray.data
import ray.train
import torch
from loops import checkpoint_of, report, train_loop, trainer_of
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, Result, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.exceptions import UserExceptionWithTraceback
from ray.train.v2._internal.execution.worker_group.poll import WorkerGroupPollStatus, WorkerStatus
from ray.util import placement_group_table

from labkit import cluster, runs
from labkit.cluster import capacity
from labkit.errors import BadInput, NoRoom, RunFailed, RunStopped
from labkit.train import TrainPanel
from labkit.train.callbacks import ReportCallback, first_failure
from labkit.worker import follower
from labkit.worker.events import Failure, Worker
from labkit.worker.mailbox import Mailbox
from labs import held_cpus, idle, interrupt_when, processes_of, shown, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("labkit/local/forkserver/", "labkit/panel/", "labkit/worker/", "labkit/train/"),
    pytest.mark.fault,
]


# -- what is seen ---------------------------------------------------------------------------------------


@pytest.mark.each_change
def test_without_workers(panel):
    original, trainer = ray.train.report, trainer_of(workers=0)
    name = trainer.run_config.name
    result = panel.fit(trainer)
    assert (panel.state.status, panel.state.engine, panel.state.epochs) == ("finished", "one process", 3)
    assert panel.state.workers[0].made == result.return_value["steps"] == 24
    assert panel.state.workers[0].rows == 3 * 64 and len(panel.state.epoch_seconds) == 3
    assert [report["epoch"] for report in panel.state.history] == [0, 1, 2]
    assert panel.state.fraction() == 1.0 and 0 < panel.state.waiting_share() < 1
    record = runs.latest("run")
    assert record.seconds["between epochs"] > 0 and len(record.seconds_per_epoch) == 3
    assert any("loss" in metrics for _, metrics in panel.state.curve)
    assert trainer.fit().return_value == result.return_value  # the weights are those without a panel
    # Nothing is left in this process, nor in the trainer.
    assert ray.train.report is original and report is original and follower.followers == []
    assert trainer.train_loop_per_worker is train_loop
    assert (trainer.run_config.name, trainer.run_config.callbacks) == (name, [])


@pytest.mark.each_change
def test_a_run_on_two_nodes_is_seen_whole(lab, home, panel, monkeypatch):
    shared = RunConfig(storage_path=str(home / "runs"))
    trainer = trainer_of(options={"run_config": shared})
    result = panel.fit(trainer)
    state = panel.state
    assert (state.status, state.world_size, state.engine) == ("finished", 2, "Ray Train")
    assert (state.epochs, state.fraction(), shared.callbacks) == (3, 1.0, [])
    assert {worker.node for worker in state.workers.values()} == {"head", "node-2"}
    assert len({worker.pid for worker in state.workers.values()}) == 2
    assert {(worker.made, worker.rows) for worker in state.workers.values()} == {(12, 96)}
    assert result.return_value["steps"] == 12
    assert [report["epoch"] for report in state.history] == [0, 1, 2]
    assert [(c.status, c.bytes) for c in state.checkpoints] == [("committed", 1000)] * 3
    assert state.printed == 6 and any(line.startswith("[rank 1] epoch") for line in state.prints)
    listed = dict(panel.files())
    assert listed["checkpoints"] == result.path == str(home / "runs" / panel.run_id)
    assert str(lab.log_dir) in listed["Ray's logs"]
    record = runs.latest("run")
    assert (record.state, record.workers, record.checkpoints) == ("finished", 2, 3)
    assert (record.config["epochs"], record.scaling["num_workers"]) == (3, 2)
    assert record.storage_path == result.path
    # Where the time went: start, steps, and what is between epochs, together the whole.
    assert sum(record.seconds.values()) == pytest.approx(record.seconds_total, rel=0.05)
    assert record.seconds["start"] > 0
    alone = trainer_of(run={"name": "alone"}).fit()
    assert alone.return_value == result.return_value  # the weights are those without a panel
    # A run without a name gets one of its own: two in one second would go on from each other.
    first = panel.run_id
    # On a cluster that the lab did not start, an actor brings what the workers say.
    left = SimpleNamespace(is_ours=True, has_this_session=False, log_dir=None)
    monkeypatch.setattr("labkit.cluster.peek", lambda: left)  # connected to last, and left
    with panel.watch(trainer):
        assert isinstance(panel.listen(), Mailbox)
        trainer.fit()
    assert panel.run_id != first and len(state.history) == 3 == len(panel.state.history)
    assert {(worker.made, worker.rows) for worker in panel.state.workers.values()} == {(12, 96)}
    assert panel.state.printed == 6 and len(panel.state.checkpoints) == 3
    assert state.note == panel.state.note == ""


@pytest.mark.each_change
def test_workers_that_wait_for_cpus_which_another_one_holds(lab, panel, monkeypatch):
    monkeypatch.setattr(capacity, "QUIET_FOR", 1.0)
    with held_cpus(3, lambda: panel.state.waits) as said:
        panel.fit(trainer_of(workers=2))
    assert said[0].startswith("waiting for 2 CPU (1 of 4 free)")
    notes = shown(panel).notes
    assert panel.state.status == "finished" and not any("waiting" in note for note in notes)


@pytest.mark.each_change
@pytest.mark.parametrize(
    ("config", "options", "epochs", "steps"),
    [
        ({"max_epochs": 4, "num_epochs": 5, "max_steps": 9}, {}, 5, None),
        ({"steps": 40}, {}, None, 40),
        ({"epochs": 4}, {"epochs": 7}, 4, None),
        ({}, {"epochs": 7}, 7, None),
    ],
)
def test_the_length_of_a_run_is_in_its_configuration_or_told(config, options, epochs, steps):
    panel = TrainPanel("run", **options)
    in_this_process = ScalingConfig(num_workers=0)
    panel.watch(TorchTrainer(train_loop, train_loop_config={"epochs": 9}, scaling_config=in_this_process))
    panel.watch(TorchTrainer(train_loop, train_loop_config=config, scaling_config=in_this_process))
    assert (panel.state.epochs, panel.state.steps_of_run) == (epochs, steps)


def an_array(config):
    ray.train.report({"loss": 1.0, "confusion": np.eye(3)}, checkpoint=checkpoint_of(0))


def no_rows(config):
    for batch in ray.train.get_dataset_shard("train").iter_torch_batches(batch_size=4):
        last = batch
    ray.train.report({"rows": len(last["id"])})


@pytest.mark.each_change
def test_what_is_wrong_with_a_metric_or_a_shard_is_named(lab, panel):
    with pytest.raises(RunFailed, match="could not report the metric 'confusion'"):
        panel.fit(trainer_of(an_array, workers=1))
    assert "numpy.ndarray of shape (3, 3)" in panel.state.failures[-1].text
    with pytest.raises(RunFailed, match=r"rank \d.*rank \d had no rows: the shard is empty"):
        panel.fit(trainer_of(no_rows, options={"datasets": {"train": ray.data.range(1)}}))


APART = [({"rates": (0.1, 0.2)}, "the learning rate"), ({"wraps": False}, "Wrap the model before")]


@pytest.mark.parametrize("config, fix", APART)
def test_ranks_with_different_weights_are_told(lab, panel, config, fix):
    panel.fit(trainer_of(**config))
    (note,) = shown(panel).notes
    assert fix in note


def reports(config):
    for epoch in range(2):
        with tempfile.TemporaryDirectory() as folder:
            metrics = {"epoch": epoch, "loss": math.nan, "shape": (1, 2)}
            checkpoint = Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=checkpoint, checkpoint_dir_name="same")


def test_what_ray_changes_in_a_report_is_said(lab, panel):
    result = panel.fit(trainer_of(reports, workers=1))
    assert math.isnan(result.metrics["loss"])
    read = Result.from_path(result.path).metrics
    assert read["loss"] is None and read["shape"] == [1, 2]
    notes = "\n".join(shown(panel).notes)
    assert "'loss' is nan in line" in notes and "'shape' is tuple in line" in notes
    assert "checkpoint_dir_name='same'" in notes and "of test_ray_reporting.py" in notes


@pytest.mark.each_change
def test_a_module_that_workers_lack_is_named_with_the_way_to_ship_it(lab, home, panel, monkeypatch):
    folder = home / "elsewhere"
    folder.mkdir()
    (folder / "train_it.py").write_text("def loop(config):\n    import ray.train\n    ray.train.report({})\n")
    monkeypatch.syspath_prepend(str(folder))
    import train_it

    with pytest.raises(RunFailed, match="No module named 'train_it'") as failed:
        panel.fit(trainer_of(train_it.loop, workers=1))
    call = "ray.cloudpickle.register_pickle_by_value(train_it)"
    assert "Traceback" not in failed.value.fact and call in failed.value.fix
    eval(call)
    panel.fit(trainer_of(train_it.loop, workers=1))
    assert panel.state.status == "finished"


# -- how a run ends -------------------------------------------------------------------------------------


@pytest.mark.each_change
def test_what_a_worker_raises_is_shown_with_its_own_lines(lab, panel):
    message = "rank 1 raised ArithmeticError: the loss is not a number(.|\n)*goes on from the last checkpoint"
    with pytest.raises(RunFailed, match=message):
        panel.fit(trainer_of(breaks=(1, 1, 2)))
    (failure, *_) = panel.state.failures
    assert (failure.rank, panel.state.status) == (1, "failed")
    assert 'raise ArithmeticError("the loss is not a number")' in failure.text
    assert failure.text.startswith("train_loop, ") and "site-packages" not in failure.text
    assert runs.latest("run", state="failed").error == "ArithmeticError: the loss is not a number"
    assert idle(lab)


def leaving_loop(config):
    """Rank 1 raises in the first second, and rank 0 loses its peer."""
    ones = torch.ones(1)
    torch.distributed.all_reduce(ones)
    if torch.distributed.get_rank() == 1:
        try:
            raise ArithmeticError("the loss is not a number")
        finally:
            torch.distributed.destroy_process_group()
            time.sleep(0.05)  # rank 0 fails meanwhile
    while True:
        torch.distributed.all_reduce(ones)


def test_a_rank_that_left_is_shown_and_not_the_one_that_lost_it(lab, panel):
    with pytest.raises(RunFailed) as failed:
        panel.fit(trainer_of(leaving_loop))
    assert [failure.rank for failure in panel.state.failures] == [1]
    assert failed.value.fact == "rank 1 raised ArithmeticError: the loss is not a number"


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
    panel.fit(trainer_of(run=run, dies=(1, 1, 2), died=str(home / "died-1"), when=str(when), seconds=0.25))
    state = panel.state
    assert [failure.text for failure in state.failures] == [KILLED]
    assert (state.status, len(state.history), state.workers.restarts) == ("finished", 3, 1)
    assert state.repeated == 3  # of its second epoch, after the checkpoint of the first
    assert (state.made, state.workers[0].epoch, state.fraction()) == (12, 2, 1.0)
    assert 0 < runs.latest("run").seconds["restart"] < state.elapsed()
    output = capfd.readouterr()
    assert "A worker died or was killed" not in output.out + output.err
    with pytest.raises(RunFailed) as failed:
        panel.fit(trainer_of(dies=(1, 0, 2), died=str(home / "died-2"), when=str(when)))
    assert failed.value.fact == KILLED
    assert f"RunConfig(name={panel.run_id!r}) goes on from the last checkpoint" in failed.value.fix
    assert panel.state.failures[-1].text == failed.value.fact


def test_checkpoints_that_ray_deletes_are_marked_and_a_name_that_is_used_again_is_told(lab, panel):
    keep = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="rmse")
    with pytest.warns(UserWarning, match='highest rmse.*checkpoint_score_order="min"'):
        panel.fit(trainer_of(epochs=4, workers=1, run={"name": "twice", "checkpoint_config": keep}))
    assert [checkpoint.deleted for checkpoint in panel.state.checkpoints] == [False, True, True, False]
    assert runs.latest("run").checkpoints == 2 and panel.state.note == ""
    panel.fit(trainer_of(epochs=4, workers=1, run={"name": "twice"}))
    assert panel.state.note.startswith("went on from epoch 4 of 4: nothing trained")
    panel.fit(trainer_of(epochs=5, workers=1, run={"name": "twice"}))
    assert (panel.state.note, len(panel.state.history)) == ("went on after epoch 4 of 5", 1)


@pytest.mark.each_change
def test_an_interrupt_ends_the_run_and_frees_its_cpus(lab, home, panel):
    interrupt_when(lambda: panel.state.first_step_at)
    with pytest.raises(RunStopped, match="stopped by you") as stopped:
        panel.fit(trainer_of(epochs=1000, seconds=0.01))
    assert panel.state.status == "stopped"
    assert idle(lab)
    # `%debug` still finds what was in Ray's frames, and that keeps no process alive.
    frames = [frame for frame, _ in traceback.walk_tb(stopped.value.__context__.__traceback__)]
    assert any("controller" in frame.f_locals for frame in frames)
    until(lambda: "ray::TrainContr" not in str(processes_of(home)))  # Linux keeps 15 characters of a name
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_ends_a_run_whose_workers_do_not_start(lab, panel, monkeypatch):
    """Ray's controller waits for them, and listens to nothing else meanwhile."""
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "3600")
    trainer = trainer_of()
    interrupt_when(lambda: "PENDING" in {group["state"] for group in placement_group_table().values()})
    with pytest.raises(RunStopped, match="stopped by you"), panel.watch(trainer):
        trainer.scaling_config.resources_per_worker = {"CPU": 1, "tape": 1}  # watch would refuse it
        trainer.fit()
    assert idle(lab)
    until(lambda: {group["state"] for group in placement_group_table().values()} == {"REMOVED"})
    panel.fit(trainer_of())
    assert panel.state.status == "finished"


@pytest.mark.each_change
def test_what_cannot_work_is_refused_before_anything_starts(lab, panel):
    with pytest.raises(NoRoom, match="5 workers with 1 CPU each"):
        panel.watch(trainer_of(workers=5))
    with pytest.raises(NoRoom, match="fed by Ray Data"):
        panel.watch(trainer_of(workers=4, options={"datasets": {"train": ray.data.range(8)}}))
    with pytest.raises(NoRoom, match="20 workers"):
        panel.watch(trainer_of(workers=(20, 30)))
    with pytest.raises(BadInput, match="not a Ray Train trainer"):
        panel.watch(TorchTrainer)
    with pytest.raises(BadInput, match=r"with panel\.watch\(trainer\)"), TrainPanel("run"):
        pass
    assert panel.state.status == "ready" and idle(lab)
    panel.watch(trainer_of(workers=(1, 30)))  # elastic: there is room for the fewest
    assert panel.state.world_size == 30


class NotHere:
    """Can be sent, and not be received."""

    def __reduce__(self):
        return eval, ("missing_module",)


@pytest.mark.parametrize("receiver", ["workers", "controller"])
def test_what_cannot_be_received_leaves_no_worker_behind(lab, panel, receiver, monkeypatch):
    """Ray's controller fails then, and leaves its placement group behind."""
    # What a ray.init() that crashed left behind: Ray asks there where it is not told whom to ask.
    monkeypatch.setattr("ray._private.utils.read_ray_address", lambda *_: "127.0.0.1:9")
    secret = NotHere()
    trainer = trainer_of(epochs=1, more=secret if receiver == "controller" else None)
    of_workers = secret if receiver == "workers" else None
    trainer.train_loop_per_worker = lambda config: train_loop(config, of_workers)
    with pytest.raises(RunFailed, match=r"the controller of the run raised .*missing_module") as failed:
        panel.fit(trainer)
    assert failed.value.__cause__ is not None
    assert idle(lab)


def test_no_secret_travels_with_a_panel(lab, home, panel):
    token = (home / "ray-token").read_bytes()
    with contextlib.closing(panel.listen()):
        assert token not in pickle.dumps(ReportCallback(panel.tracker)) + repr(panel).encode()


KILLED = (
    "rank 1 is gone: signal 9 (SIGKILL) ended it, as `kill -9` does, or the system when its memory runs out"
)


class HealthCheckFailed(Exception):
    def __init__(self, message):
        super().__init__("A worker health check failed.")
        self.health_check_failure = ray.exceptions.RayActorError(error_msg=message)


OF_THE_LOOP = ray.exceptions.RayActorError(error_msg="The actor died unexpectedly: one of the reader's own")
DEAD = HealthCheckFailed("The actor is dead because its worker process has died.")
FULL = HealthCheckFailed("")
FULL.health_check_failure = ray.exceptions.OutOfMemoryError("1 worker(s) … the node running low on memory.")
OF_RAY = {"__module__": "ray.train.v2._internal.exceptions"}
HUNG = type("WorkerHealthCheckTimeoutError", (Exception,), OF_RAY)(
    "A worker health check has been hanging for 5 s.\nSet RAY_TRAIN_… to wait longer"
)
OWN = ArithmeticError("the loss is not a number")
STORE = RuntimeError(
    "failed to recv, got 0 bytes. Connection was likely closed. Did the remote server crash?"
)
GLOO = RuntimeError("Connection closed by peer [127.0.0.1]:40000")
WAITED = type("BroadcastCollectiveTimeoutError", (Exception,), OF_RAY)("The broadcast operation timed out")


@pytest.mark.parametrize(
    "exceptions, rank, text",
    [
        ({0: GLOO, 1: DEAD}, 1, "rank 1 is gone"),
        ({0: GLOO, 1: FULL}, 1, "rank 1 is gone"),
        ({0: OF_THE_LOOP}, 0, f"RayActorError: {OF_THE_LOOP}"),
        ({1: HUNG}, 1, "rank 1 failed: A worker health check has been hanging for 5 s."),
        ({0: GLOO, 1: GLOO}, 0, f"RuntimeError: {GLOO}"),
        ({0: GLOO, 1: OWN, 2: OWN}, 1, f"ArithmeticError: {OWN}"),
        ({0: STORE, 1: OWN}, 1, f"ArithmeticError: {OWN}"),
        ({0: WAITED, 2: OWN}, 2, f"ArithmeticError: {OWN}"),
        ({0: GLOO, 1: OWN, 2: DEAD}, 2, "rank 2 is gone"),
    ],
)
def test_the_failure_that_caused_the_others_is_told(exceptions, rank, text):
    failure = first_failure(exceptions)
    assert (failure.rank, failure.text) == (rank, text)
    died = getattr(exceptions[rank], "health_check_failure", "") if text.endswith(" is gone") else ""
    assert failure.died == str(died)


@pytest.mark.parametrize("node, words", [("node-2", KILLED), ("lost", "Ray doesn't know which")])
def test_a_rank_is_known_where_ray_names_no_process(panel, monkeypatch, node, words):
    late = "The actor ab is unavailable: The actor is temporarily unavailable: RpcError: Socket closed"
    lab = SimpleNamespace(log_dir=None, exit_codes=lambda: {12: -9}, runs_here="node-2".__eq__)
    monkeypatch.setattr(cluster, "peek", lambda: lab)
    panel.state.start()
    panel.receive(Worker(run=panel.run_id, rank=1, pid=12, node=node))
    panel.receive(Failure("rank 1 is gone", late, run=panel.run_id, rank=1))
    (failure,) = panel.state.failures
    assert failure.text.startswith("rank 1 is gone: ") and failure.text.endswith(words)


def failed_by(failures):
    """Ray's own error for a group whose ranks raised these, each in its own line of the loop."""
    text = 'Traceback (most recent call last):\n  File "loop.py", line {}, in train_loop\n{}: {}'
    return WorkerGroupPollStatus(
        {
            rank: WorkerStatus(
                False, UserExceptionWithTraceback(error, text.format(rank, type(error).__name__, error))
            )
            for rank, error in failures.items()
        }
    ).get_worker_group_error()


@pytest.mark.parametrize("heard", [True, False])
def test_a_run_that_failed_shows_the_rank_whose_failure_caused_the_others(panel, heard):
    """Whether or not the controller's own event has come."""
    panel.state.start()
    failures = {0: GLOO, 3: GLOO, 12: OWN, 20: RuntimeError("Broken pipe")}
    if heard:
        rank, text, _ = first_failure(failures)
        panel.receive(Failure(text, run=panel.run_id, rank=rank))
    panel.keep_failure(failed_by(failures))
    [failure] = panel.state.failures
    assert (failure.rank, failure.message) == (12, "ArithmeticError: the loss is not a number")
    assert "train_loop, loop.py, line 12" in failure.text
