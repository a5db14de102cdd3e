"""`panel.watch` and loops that know nothing of labkit."""

import runpy
import sys
import threading
from types import SimpleNamespace

import pytest
import ray.data
import ray.train
import torch
from loops import checkpoint_of, report, train_loop, trainer_of
from ray import cloudpickle
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

from labkit import runs
from labkit.cluster import capacity
from labkit.errors import LabError
from labkit.panel.reporters import NullReporter
from labkit.panel.tracking import hooks
from labkit.train import TrainPanel
from labs import until

LAB = {"cpus_per_node": 3}
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests


@pytest.fixture
def panel(home):
    return TrainPanel("watched", reporter=NullReporter())


def test_without_workers(home, panel):
    import ray.train as module

    original, trainer = module.report, trainer_of(home, workers=0)
    name = trainer.run_config.name
    result = panel.fit(trainer)
    assert (panel.state.status, panel.state.engine, panel.state.epochs) == ("finished", "one process", 3)
    assert panel.state.workers[0].made == result.return_value["steps"] == 24
    assert panel.state.workers[0].rows == 3 * 64 and len(panel.state.epoch_seconds) == 3
    assert [one["epoch"] for one in panel.state.history] == [0, 1, 2]
    assert panel.state.fraction() == 1.0 and 0 < panel.state.waiting_share() < 1
    record = runs.latest("watched")
    assert record.seconds["between epochs"] > 0 and len(record.seconds_per_epoch) == 3
    assert any("loss" in metrics for _, metrics in panel.state.curve)
    assert trainer.fit().return_value == result.return_value  # the weights are those without a panel
    # Nothing is left in this process, nor in the trainer.
    assert module.report is original and report is original and hooks._following == []
    assert trainer.train_loop_per_worker is train_loop
    assert (trainer.run_config.name, trainer.run_config.callbacks) == (name, [])


def test_two_workers(lab, home, panel):
    shared = RunConfig(storage_path=str(home / "runs"))
    trainer = trainer_of(home, workers=2, shared=shared)
    result = panel.fit(trainer)
    state = panel.state
    assert (state.status, state.world_size, state.epochs, state.fraction()) == ("finished", 2, 3, 1.0)
    assert {worker.made for worker in state.workers.values()} == {12} == {result.return_value["steps"]}
    assert {worker.rows for worker in state.workers.values()} == {96}
    assert [one["epoch"] for one in state.history] == [0, 1, 2] and state.checkpoints.kept == 3
    assert result.path == str(home / "runs" / panel.run_id)
    assert shared.callbacks == []
    alone = trainer_of(home, workers=2, run={"name": "alone"}).fit()
    assert alone.return_value == result.return_value  # the weights are those without a panel
    # A run without a name gets one of its own: two in one second would go on from each other.
    first = panel.run_id
    panel.fit(trainer)
    assert panel.run_id != first and len(state.history) == 3 == len(panel.state.history)
    assert state.note == panel.state.note == ""


def test_workers_that_wait_for_cpus_which_another_one_holds(lab, home, panel, monkeypatch):
    def look():
        try:
            until(lambda: panel.state.waits, seconds=120)
            notes.append(panel.state.waits)
        finally:
            ray.util.remove_placement_group(held)

    monkeypatch.setattr(capacity, "QUIET_FOR", 1.0)
    held, notes = ray.util.placement_group([{"CPU": 1}] * 2), []
    assert held.wait(60)
    (looking := threading.Thread(target=look, daemon=True)).start()
    panel.fit(trainer_of(home, workers=2))
    looking.join()
    assert notes[0].startswith("waiting for 2 CPU (1 of 3 free)")
    assert panel.state.status == "finished" and not any("waiting" in note for note in panel.state.notes)


@pytest.mark.parametrize(
    ("config", "given", "epochs", "steps"),
    [
        ({"max_epochs": 4, "num_epochs": 5, "max_steps": 9}, {}, 5, None),
        ({"steps": 40}, {}, None, 40),
        ({"epochs": 4}, {"epochs": 7}, 4, None),
        ({}, {"epochs": 7}, 7, None),
        ({}, {}, None, None),
    ],
)
def test_the_length_of_a_run_is_in_its_configuration_or_told(home, config, given, epochs, steps):
    panel = TrainPanel("watched", reporter=NullReporter(), **given)
    in_this_process = ScalingConfig(num_workers=0)
    panel.watch(TorchTrainer(train_loop, train_loop_config={"epochs": 9}, scaling_config=in_this_process))
    panel.watch(TorchTrainer(train_loop, train_loop_config=config, scaling_config=in_this_process))
    assert (panel.state.epochs, panel.state.steps_of_run) == (epochs, steps)


def test_a_shard_of_ray_data_that_is_iterated_twice(lab, home, panel):
    def over_a_shard(config):
        model = prepare_model(torch.nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches, rows = ray.train.get_dataset_shard("train").iter_torch_batches(batch_size=4), 0
        for _ in range(2):  # the same object in both epochs
            for batch in batches:
                model(batch["id"].float()[:, None]).mean().backward()
                optimizer.step()
                rows += len(batch["id"])
            ray.train.report({"loss": 1.0})
        return rows

    data = ray.data.range(32)
    result = panel.fit(trainer_of(home, workers=2, loop=over_a_shard, datasets={"train": data}, epochs=2))
    assert panel.state.workers[0].rows == result.return_value == 32
    assert len(panel.state.epoch_seconds) == 2


def an_array(config):
    import numpy as np

    ray.train.report({"loss": 1.0, "confusion": np.eye(3)}, checkpoint=checkpoint_of(0))


def no_rows(config):
    for batch in ray.train.get_dataset_shard("train").iter_torch_batches(batch_size=4):
        last = batch
    ray.train.report({"rows": len(last["id"])})


def test_what_is_wrong_with_a_metric_or_a_shard_is_named(lab, home, panel):
    with pytest.raises(LabError, match="could not report the metric 'confusion'"):
        panel.fit(trainer_of(home, workers=1, loop=an_array))
    assert "numpy.ndarray of shape (3, 3)" in panel.state.failures[-1].text
    with pytest.raises(LabError, match=r"rank \d.*rank \d had no rows: the shard is empty"):
        panel.fit(trainer_of(home, workers=2, loop=no_rows, datasets={"train": ray.data.range(1)}))


def test_a_module_that_workers_lack_is_named_with_the_way_to_ship_it(lab, home, panel, monkeypatch):
    folder = home / "elsewhere"
    folder.mkdir()
    (folder / "train_it.py").write_text("def loop(config):\n    import ray.train\n    ray.train.report({})\n")
    monkeypatch.syspath_prepend(str(folder))
    import train_it

    with pytest.raises(LabError, match="No module named 'train_it'") as failed:
        panel.fit(trainer_of(home, workers=1, loop=train_it.loop))
    call = "ray.cloudpickle.register_pickle_by_value(train_it)"
    assert "Traceback" not in failed.value.fact and call in failed.value.fix
    eval(call)
    panel.fit(trainer_of(home, workers=1, loop=train_it.loop))
    assert panel.state.status == "finished"


def test_the_plain_script_of_lesson_03(lab, home, panel, root, monkeypatch, capsys):
    """Its train function, unchanged."""
    fit_of_ray = TorchTrainer.fit

    def followed(trainer):
        with panel.watch(trainer):
            return fit_of_ray(trainer)

    monkeypatch.setattr(TorchTrainer, "fit", followed)
    monkeypatch.setattr(ray, "init", lambda *_, **__: SimpleNamespace())
    monkeypatch.setenv("STORAGE", str(home / "plain"))
    [script] = (root / "notebooks" / "plain").glob("03_*.py")
    runpy.run_path(str(script), run_name="__main__")
    state = panel.state
    assert "accuracy 0.9" in capsys.readouterr().out
    # 1,437 rows for two workers, in batches of 64, in six epochs; the sampler repeats one row.
    assert sum(worker.rows for worker in state.workers.values()) == 6 * 1438
    assert {worker.made for worker in state.workers.values()} == {6 * 12}
    assert len(state.epoch_seconds) == 6 and len(state.history) == 6
