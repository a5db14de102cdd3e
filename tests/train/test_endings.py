"""How ranks, trials and validations end: what is said of a process that is gone, and of odd exceptions."""

import os
import re
import signal
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import ray
import ray.train
from loops import checkpoint_of, rank
from ray.train import ReportedCheckpointStatus, RunConfig, ScalingConfig, ValidationConfig
from ray.train.torch import TorchTrainer

from labkit.errors import BadInput, NoRoom, RunFailed
from labkit.panel.reporters import NullReporter
from labkit.train import TrainPanel, reported_checkpoints

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers(
        "labkit/local/forkserver/", "labkit/cluster/", "labkit/panel/", "labkit/worker/", "labkit/train/"
    ),
    pytest.mark.fault,
]
LAB = {}


@pytest.fixture
def panel(home):
    return TrainPanel("run", reporter=NullReporter())


class DataMissing(Exception):
    """Can be pickled, and not unpickled."""

    def __init__(self, table, row):
        super().__init__(f"table {table} has no row {row}")


class HoldsALock(Exception):
    """Can't be pickled."""

    def __init__(self, message):
        super().__init__(message)
        self.lock = threading.Lock()


def end(how):
    if how == "status":
        os._exit(3)
    if how == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        sys.exit("there is no data set called films")
    if how == "lock":
        raise HoldsALock("the file is locked")
    raise DataMissing("films", 7)


def ends(config):
    ray.train.report({"loss": 1.0})
    if rank() == 1:
        end(config["how"])
    ray.train.report({"loss": 1.0})


def trainer_of(loop, how=None, workers=2, **options):
    config = {"how": how}
    return TorchTrainer(
        loop, train_loop_config=config, scaling_config=ScalingConfig(num_workers=workers), **options
    )


WAYS = [
    ("status", "it exited with status 3"),
    ("crash", "signal 11 (SIGSEGV) ended it"),
    ("kill", "signal 9 (SIGKILL) ended it, as `kill -9` does, or the system when its memory runs out"),
]


@pytest.mark.parametrize("how, words", WAYS)
def test_a_rank_that_ends_by_itself_says_how(lab, home, panel, how, words):
    with pytest.raises(RunFailed) as failed:
        panel.fit(trainer_of(ends, how))
    assert failed.value.fact == f"rank 1 is gone: {words}"
    assert {failure.text for failure in panel.state.failures} == {failed.value.fact}
    assert "panel above" not in failed.value.fix
    if how == "crash":  # Python has written where
        (log,) = re.findall(r"\S+\.err", failed.value.fix)
        assert re.search("Segmentation fault|SIGSEGV", Path(log).read_text())


EXCEPTIONS = [
    ("missing", "DataMissing: table films has no row 7"),
    ("lock", "HoldsALock: the file is locked"),
    ("exit", "SystemExit: there is no data set called films"),
]


@pytest.mark.parametrize("how, message", EXCEPTIONS)
def test_an_exception_that_cannot_be_sent_keeps_its_message_and_line(lab, home, panel, how, message):
    with pytest.raises(RunFailed) as failed:
        panel.fit(trainer_of(ends, how))
    assert failed.value.fact.endswith(message) and failed.value.fact.startswith("rank 1 raised")
    assert failed.value.fix == "the panel above shows where"
    (failure,) = panel.state.failures
    assert failure.rank == 1 and failure.text.splitlines()[-1].endswith(message)


class DeadHelper:
    def ping(self):
        os._exit(1)


def uses_an_actor(config):
    ray.get(ray.remote(DeadHelper).options(num_cpus=0).remote().ping.remote())


def test_a_rank_whose_own_actor_dies_is_not_gone(lab, home, panel):
    with pytest.raises(RunFailed) as failed:
        panel.fit(trainer_of(uses_an_actor, workers=1))
    assert failed.value.fact.startswith("rank 0 raised") and "is gone" not in failed.value.fact


def saves(config):
    for epoch in range(2):
        ray.train.report({"epoch": epoch}, checkpoint=checkpoint_of(epoch), validation=True)


def validated(home, how):
    return trainer_of(
        saves,
        workers=1,
        validation_config=ValidationConfig(lambda checkpoint: end(how)),
        run_config=RunConfig(storage_path=tempfile.mkdtemp(dir=home)),
    )


@pytest.mark.parametrize("how", ["missing", "lock", "exit"])
def test_a_validation_with_an_odd_exception_is_a_failed_validation(lab, home, panel, how):
    """In plain Ray it ends the run."""
    result = panel.fit(validated(home, how))
    checkpoints = reported_checkpoints(result.path, result.filesystem)
    assert {checkpoint.status for checkpoint in checkpoints} == {ReportedCheckpointStatus.VALIDATION_FAILED}
    reasons = {
        "missing": "DataMissing: table films",
        "lock": "HoldsALock: the",
        "exit": "SystemExit: there is",
    }
    assert all(checkpoint.reason.startswith(reasons[how]) for checkpoint in panel.state.checkpoints)


@pytest.mark.parametrize(
    "how, words", [("status", "it exited with status 3"), ("crash", "signal 11 (SIGSEGV) ended it")]
)
def test_a_validation_whose_process_ends_is_called_one(lab, home, panel, how, words, capfd):
    with pytest.raises(RunFailed) as failed:
        panel.fit(validated(home, how))
    assert re.fullmatch(rf"the validation of epoch [12] ended: {re.escape(words)}", failed.value.fact)
    assert "correct the validation function" in failed.value.fix and "goes on" in failed.value.fix
    assert "panel above" not in failed.value.fix
    assert (panel.state.failures[-1].rank, panel.state.failures[-1].text) == (None, failed.value.fact)
    output = capfd.readouterr()
    assert "retries remaining" not in output.out + output.err


def reports(config):
    ray.train.report({"loss": 1.0})


FIXES = [
    ({"torch_config": ray.train.torch.TorchConfig(backend="nccl")}, 'TorchConfig(backend="gloo")'),
    ({"run_config": RunConfig(worker_runtime_env={"pip": 3})}, "correct runtime_env['pip']"),
    ({"run_config": RunConfig(storage_path="/proc/runs")}, "in place of /proc/runs"),
]


@pytest.mark.parametrize("options, fix", FIXES)
def test_a_fact_with_a_known_fix_has_it(lab, home, panel, options, fix):
    if "torch_config" in options and ray.cluster_resources().get("GPU"):
        pytest.skip("there is a GPU")
    with pytest.raises(RunFailed) as failed:
        panel.fit(trainer_of(reports, **options))
    assert fix in failed.value.fix and "panel above" not in failed.value.fix


def test_what_ray_refuses_before_a_start_is_a_refusal(lab, home, panel):
    with pytest.raises(RunFailed, match="could not start the run 'run'") as refused:
        panel.fit(trainer_of(lambda config, other: None))
    assert refused.value.fact.startswith("Ray refuses it: train_loop_per_worker should take in 0 or 1")


@pytest.mark.each_change
@pytest.mark.parametrize(
    "scaling, parts",
    [
        ({"resources_per_worker": {"CPU": 1, "memory": 640e9}}, ["640 GB memory each", "room for 0 of them"]),
        ({"resources_per_worker": {"cpu": 1}}, ["no node has the resource 'cpu'", "{'CPU': 1} in place of"]),
        ({"resources_per_worker": {"CPU": 1, "fast_disk": 1}}, ["0 fast_disk", "resources={'fast_disk': …}"]),
        (
            {"accelerator_type": "T4"},
            ["an accelerator of type T4", "without a T4", "leave accelerator_type out"],
        ),
        (
            {"placement_strategy": "STRICT_SPREAD"},
            ["each on a node of its own", 'placement_strategy="SPREAD"'],
        ),
        ({"label_selector": {"zone": "a"}}, ["labels {'zone': 'a'}", "leave label_selector out"]),
    ],
)
def test_what_no_node_can_ever_give_is_refused_before_the_start(lab, panel, scaling, parts):
    trainer = TorchTrainer(reports, scaling_config=ScalingConfig(num_workers=2, **scaling))
    with pytest.raises(NoRoom, match="wait forever") as refused:
        panel.watch(trainer)
    assert all(part in str(refused.value) for part in parts)
    assert panel.state.status == "ready"


@pytest.mark.each_change
@pytest.mark.parametrize(
    "options, fact",
    [
        ({"label_selector": {"zone": "a"}}, "labels"),
        ({"resources": {"tape": 1}}, "tape"),
        ({"memory": 1e15}, "TB"),
    ],
)
def test_a_validation_that_no_node_can_run_is_refused(lab, home, panel, options, fact):
    trainer = validated(home, "status")
    trainer.validation_config.ray_remote_kwargs = options
    with pytest.raises(NoRoom, match="run validations") as refused:
        panel.watch(trainer)
    assert fact in refused.value.fact


@pytest.mark.each_change
def test_a_relative_storage_path_is_refused(lab, panel):
    with pytest.raises(BadInput, match="relative path"):
        panel.watch(trainer_of(reports, run_config=RunConfig(storage_path="runs")))
