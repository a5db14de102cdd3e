"""Fault injection on a real cluster: each fault is made, seen, undone and survived."""

import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import ray.train
from ray import cloudpickle
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from labkit import faults, storage
from labkit.errors import LabError, RunFailed
from labkit.system import family
from labkit.train import TrainPanel
from labkit.tune import SweepPanel
from labs import until

pytestmark = pytest.mark.fault

EPOCHS, STEPS, GATE = 3, 12, 11


# Workers cannot import this module, so the loop goes to them by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def loop(config):
    """Epochs of steps in which the ranks wait for one another; one checkpoint for each epoch.

    The second epoch is slow enough for an event of each step, and before its last step rank 0 waits until the
    fault was made: a busy machine may take its time for that.
    """
    import torch
    from ray.train.torch import prepare_model

    start, checkpoint = 0, ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            start = int(Path(folder, "epoch").read_text()) + 1
    model = prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = ray.train.get_context().get_world_rank() == 0
    for epoch in range(start, EPOCHS):
        for step, x in enumerate(torch.utils.data.DataLoader(torch.ones(STEPS, 1))):
            is_made = Path(config["made"]).exists
            time.sleep(0.25 if epoch == 1 and not is_made() else 0.05)
            while first and (epoch, step) == (1, GATE) and not is_made():
                time.sleep(0.02)
            model(x).mean().backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "epoch").write_text(str(epoch))
            ray.train.report(
                {"epoch": epoch}, checkpoint=Checkpoint.from_directory(folder) if first else None
            )
        # Ray's controller looks for reports five times a second. What a fault later on finds is then certain.
        ray.train.get_all_reported_checkpoints(ray.train.CheckpointConsistencyMode.COMMITTED)


@pytest.fixture(scope="module")
def home(home):
    # A head looks for its nodes every 3 s and gives each five chances; no test waits for that.
    os.environ.update(RAY_health_check_period_ms="300", RAY_health_check_initial_delay_ms="300")
    return home


@pytest.fixture
def panel(lab):
    return TrainPanel("faults")


@pytest.fixture
def fit(panel, tmp_path):
    def fit(fault=None):
        def note():
            try:
                until(lambda: fault is None or fault.outcome != "armed")
            finally:  # else the rank would wait until the test's limit
                (tmp_path / "made").touch()

        threading.Thread(target=note, daemon=True).start()
        trainer = TorchTrainer(
            loop,
            train_loop_config={"epochs": EPOCHS, "made": str(tmp_path / "made")},
            scaling_config=ScalingConfig(num_workers=2, placement_strategy="SPREAD"),
            run_config=RunConfig(
                name="faults",
                storage_path=str(tmp_path),
                failure_config=FailureConfig(max_failures=1),
            ),
        )
        with panel.watch(trainer):
            return trainer.fit()

    return fit


def test_a_killed_rank_is_replaced_and_the_card_says_what_that_cost(panel, fit):
    fault = faults.kill_rank(1).at(panel, epoch=1, step=6)
    assert fit(fault).metrics == {"epoch": EPOCHS - 1}
    assert fault.wait(90).outcome == "made"
    epoch, step = fault.moment
    assert (epoch, step) >= (1, 6)
    assert 0 < fault.noticed <= fault.standstill
    # Rank 0 may have made some more before it waited for the fault.
    assert step <= fault.repeated <= GATE + 1
    assert panel.state.workers.restarts == 1
    assert f"steps trained twice: {fault.repeated}" in repr(fault) and "SIGKILL" in fault._repr_html_()


def test_a_frozen_rank_holds_up_all_and_nobody_fails(panel, fit):
    fault = faults.freeze_rank(1, seconds=4).at(panel, epoch=1, step=3)
    fit(fault)
    assert fault.wait(90).outcome == "made"
    # Steps from before may have come late, but not by seconds.
    assert fault.standstill > 1.2 and fault.noticed is None and fault.repeated is None
    assert panel.state.workers.restarts == 0


def test_a_killed_node_is_survived_on_the_other(panel, fit, lab):
    fault = faults.kill_node("node-2").at(panel, epoch=1, step=6)
    fit(fault)
    assert fault.wait(90).outcome == "made" and fault.repeated >= 6
    until(lambda: "node-2" not in [node.name for node in lab.nodes])
    lab.add_node(cpus=2)


def test_without_its_controller_a_run_fails_and_the_next_one_resumes(panel, fit):
    fault = faults.kill_controller().at(panel, epoch=1, step=2)
    with pytest.raises(RunFailed):
        fit(fault)
    assert fault.wait(90).outcome == "made"
    fit()
    assert panel.state.history[0]["epoch"] == 1  # the first epoch was not trained again


def test_a_notice_reaches_the_node(lab, home):
    added = lab.add_node(cpus=1)
    fault = faults.drain_node(added.name, deadline=10).now()
    assert fault.outcome == "made", fault
    # Idle and drained, so Ray ends it, but not its fork server.
    until(lambda: added.name not in [node.name for node in lab.nodes])
    left = family.running(home, "cluster", added.name)
    assert any(one.alive for one in left)
    lab.remove_node(lab.add_node(cpus=1))
    assert not any(one.alive for one in left)


@pytest.mark.parametrize(
    "fault, why",
    [
        (lambda: faults.kill_node("head"), "the cluster would end"),
        (lambda: faults.kill_node("node-77"), "started no such node"),
        (lambda: faults.drain_node("node-77"), "started no such node"),
        (lambda: faults.kill_rank(0), "no run was named"),
    ],
)
def test_what_cannot_be_made_is_refused_with_a_reason(lab, fault, why):
    made = fault().now()
    assert made.outcome == "refused" and why in made.did and "fix:" in made.did


def test_wrong_use_is_an_error(panel):
    with pytest.raises(LabError, match="between 0 and 1"):
        faults.slow_rank(0, share=2)
    with pytest.raises(LabError, match="no epochs and no ranks"):
        faults.kill_rank(0).at(SweepPanel("sweep"))


def test_a_rank_on_another_machine_is_not_mistaken_for_a_local_process(panel, lab):
    """It has the pid of one of the lab's own processes here."""
    one = faults._running(panel)[0]
    worker = SimpleNamespace(pid=one.pid, node="elsewhere")
    stand_in = SimpleNamespace(settings=panel.settings, state=SimpleNamespace(workers={0: worker}))
    with pytest.raises(LabError, match="no process of it on this machine; .* 0 on elsewhere"):
        faults._rank(stand_in, 0)
    worker.node = one.node
    assert faults._rank(stand_in, 0) == [one.process]


def test_a_frozen_store_answers_again(home):
    with storage.start() as store:
        bucket = store.bucket("frozen")
        (server,) = [one.process for one in family.running(home, family.STORE) if one.is_origin]
        fault = faults.freeze_store(store, seconds=5)
        threading.Thread(target=fault.now).start()
        until(lambda: server.status() == psutil.STATUS_STOPPED)
        store.files.invalidate_cache()
        assert store.files.ls(bucket) == []  # as soon as it runs on
        assert fault.wait(90).outcome == "made" and server.status() != psutil.STATUS_STOPPED
