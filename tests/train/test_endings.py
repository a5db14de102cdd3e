"""How ranks, trials and validations end: what is said of a process that is gone, and of odd exceptions."""

import os
import re
import signal
import sys
import threading
from pathlib import Path

import pytest
import ray
import ray.train
from loops import checkpoint_of, rank, trainer_of
from ray.train import ReportedCheckpointStatus, RunConfig, ScalingConfig, ValidationConfig

from labkit.errors import BadInput, NoRoom, RunFailed
from labkit.train import reported_checkpoints

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers(
        "labkit/local/forkserver/", "labkit/cluster/", "labkit/panel/", "labkit/worker/", "labkit/train/"
    ),
    pytest.mark.fault,
]
LAB = {}


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


WAYS = [("status", "it exited with status 3"), ("crash", "signal 11 (SIGSEGV) ended it")]


@pytest.mark.parametrize("how, words", WAYS)
def test_a_rank_that_ends_by_itself_says_how(lab, panel, how, words):
    with pytest.raises(RunFailed) as failed:
        panel.fit(trainer_of(ends, how=how))
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
def test_an_exception_that_cannot_be_sent_keeps_its_message_and_line(lab, panel, how, message):
    with pytest.raises(RunFailed) as failed:
        panel.fit(trainer_of(ends, how=how))
    assert failed.value.fact.endswith(message) and failed.value.fact.startswith("rank 1 raised")
    assert failed.value.fix == "the panel above shows where"
    (failure,) = panel.state.failures
    assert failure.rank == 1 and failure.text.splitlines()[-1].endswith(message)


def saves(config):
    for epoch in range(2):
        ray.train.report({"epoch": epoch}, checkpoint=checkpoint_of(epoch), validation=True)


def validated(how):
    options = {"validation_config": ValidationConfig(lambda checkpoint: end(how))}
    return trainer_of(saves, workers=1, options=options)


@pytest.mark.parametrize("how, reason", EXCEPTIONS)
def test_a_validation_with_an_odd_exception_is_a_failed_validation(lab, panel, how, reason):
    """In plain Ray it ends the run."""
    result = panel.fit(validated(how))
    checkpoints = reported_checkpoints(result.path, result.filesystem)
    assert {checkpoint.status for checkpoint in checkpoints} == {ReportedCheckpointStatus.VALIDATION_FAILED}
    assert {checkpoint.reason for checkpoint in panel.state.checkpoints} == {reason}


@pytest.mark.parametrize("how, words", WAYS)
def test_a_validation_whose_process_ends_is_called_one(lab, panel, how, words, capfd):
    with pytest.raises(RunFailed) as failed:
        panel.fit(validated(how))
    assert re.fullmatch(rf"the validation of epoch [12] ended: {re.escape(words)}", failed.value.fact)
    assert "correct the validation function" in failed.value.fix and "goes on" in failed.value.fix
    assert "panel above" not in failed.value.fix
    assert (panel.state.failures[-1].rank, panel.state.failures[-1].text) == (None, failed.value.fact)
    output = capfd.readouterr()
    assert "retries remaining" not in output.out + output.err


FIXES = [
    ({"torch_config": ray.train.torch.TorchConfig(backend="nccl")}, 'TorchConfig(backend="gloo")'),
    ({"run_config": RunConfig(worker_runtime_env={"pip": 3})}, "correct runtime_env['pip']"),
    ({"run_config": RunConfig(storage_path="/proc/runs")}, "in place of /proc/runs"),
]


@pytest.mark.parametrize("options, fix", FIXES)
def test_a_fact_with_a_known_fix_has_it(lab, panel, options, fix):
    if "torch_config" in options and ray.cluster_resources().get("GPU"):
        pytest.skip("there is a GPU")
    with pytest.raises(RunFailed) as failed:
        panel.fit(trainer_of(options=options))
    assert fix in failed.value.fix and "panel above" not in failed.value.fix


def test_what_ray_refuses_before_a_start_is_a_refusal(lab, panel):
    with pytest.raises(RunFailed, match="could not start the run 'run'") as refused:
        panel.fit(trainer_of(lambda config, other: None))
    assert refused.value.fact.startswith("Ray refuses it: train_loop_per_worker should take in 0 or 1")


REFUSED = [
    ({"resources_per_worker": {"CPU": 1, "fast_disk": 1}}, "0 fast_disk"),
    ({"accelerator_type": "T4"}, "without a T4"),
    ({"placement_strategy": "STRICT_SPREAD"}, "each on a node of its own"),
    ({"label_selector": {"zone": "a"}}, "labels {'zone': 'a'}"),
]


@pytest.mark.each_change
@pytest.mark.parametrize("scaling, fact", REFUSED)
def test_what_no_node_can_ever_give_is_refused_before_the_start(lab, panel, scaling, fact):
    options = {"scaling_config": ScalingConfig(num_workers=2, **scaling)}
    with pytest.raises(NoRoom, match="wait forever") as refused:
        panel.watch(trainer_of(options=options))
    assert fact in refused.value.fact and panel.state.status == "ready"


@pytest.mark.each_change
def test_a_validation_that_no_node_can_run_is_refused(lab, panel):
    trainer = validated("status")
    trainer.validation_config.ray_remote_kwargs = {"resources": {"tape": 1}}
    with pytest.raises(NoRoom, match="(?s)run validations.*tape"):
        panel.watch(trainer)


@pytest.mark.each_change
def test_a_relative_storage_path_is_refused(lab, panel):
    options = {"run_config": RunConfig(storage_path="runs")}
    with pytest.raises(BadInput, match="relative path"):
        panel.watch(trainer_of(options=options))
