"""What a person runs on a cluster that the lab did not start, each in a process: `cluster_jobs.py JOB`.

The variables ADDRESS and SHARED name the cluster and a folder that all machines see. What happened is printed
as one line of JSON. Its functions reach the workers by value, as those of a notebook do.
"""

import json
import os
import socket
import sys
import tempfile
import time
import warnings

import ray.train
import torch
from ray import tune
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader, TensorDataset

from labkit.errors import LabError
from labkit.local import cluster
from labkit.panel.reporters import NullReporter
from labkit.train import TrainPanel
from labkit.tune import SweepPanel

SHARED = os.environ["SHARED"]
outcome: dict[str, object] = {}


def train_loop(config):
    """Three epochs over 64 rows, and a checkpoint after each."""
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.rand(64, 4), torch.rand(64, 1))
    rows = prepare_data_loader(DataLoader(data, batch_size=8))
    print(f"rank {ray.train.get_context().get_world_rank()} is on {socket.gethostname()}")
    for epoch in range(config["epochs"]):
        for x, y in rows:
            time.sleep(config["pause"])
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            saved = None
            if ray.train.get_context().get_world_rank() == 0:
                torch.save(model.state_dict(), f"{folder}/model.pt")
                saved = ray.train.Checkpoint.from_directory(folder)
            asked = saved is not None and config["validates"]
            ray.train.report({"loss": loss.item(), "epoch": epoch}, checkpoint=saved, validation=asked)


def validate(checkpoint):
    with checkpoint.as_directory() as folder:
        return {"files": float(len(os.listdir(folder))), "host": float(os.getpid() > 0)}


def trial(config):
    for step in range(3):
        tune.report({"score": config["x"] * step})


def trainer_of(*, validates=False, pause=0.02):
    return TorchTrainer(
        train_loop,
        train_loop_config={"epochs": 3, "validates": validates, "pause": pause},
        scaling_config=ray.train.ScalingConfig(num_workers=2, placement_strategy="SPREAD"),
        run_config=ray.train.RunConfig(storage_path=f"{SHARED}/runs"),
        validation_config=ray.train.ValidationConfig(validate) if validates else None,
    )


def followed(panel, trainer):
    """Train under a panel; tell what it saw of the ranks."""
    result = panel.fit(trainer)
    workers = panel.state.workers.items()
    outcome["status"] = panel.state.status
    outcome["workers"] = {rank: [worker.node, worker.made, worker.rows] for rank, worker in workers}
    outcome["history"], outcome["prints"] = len(panel.state.history), list(panel.state.prints)
    outcome["checkpoint"] = os.path.isdir(result.checkpoint.path)


def train():
    followed(TrainPanel("train", reporter=NullReporter()), trainer_of())


def slowly():
    """Long enough for a panel to notice that it hears nothing."""
    followed(TrainPanel("slowly", reporter=NullReporter()), trainer_of(pause=1.2))


def validation():
    panel = TrainPanel("validation", reporter=NullReporter())
    followed(panel, trainer_of(validates=True))
    outcome["validated"] = [checkpoint.status for checkpoint in panel.state.checkpoints]
    outcome["metrics"] = [checkpoint.metrics.get("files") for checkpoint in panel.state.checkpoints]


def sweep():
    panel = SweepPanel("sweep", reporter=NullReporter())
    tuner = tune.Tuner(
        trial,
        param_space={"x": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(metric="score", mode="max"),
        run_config=tune.RunConfig(storage_path=f"{SHARED}/sweeps"),
    )
    with panel.watch(tuner):
        results = tuner.fit()
    outcome["best"], outcome["trials"] = results.get_best_result().config, len(panel.state.trials)
    outcome["status"], outcome["errors"] = panel.state.status, len(results.errors)


def is_idle():
    """Whether all CPUs come free again."""
    for _ in range(100):
        if ray.available_resources().get("CPU") == ray.cluster_resources().get("CPU"):
            return True
        time.sleep(0.2)
    return False


def main(job: str) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            lab = cluster.connect(os.environ["ADDRESS"])
            outcome["nodes"] = [node.address for node in lab.nodes]
            globals()[job]()
            outcome["idle"] = is_idle()
            lab.stop()
        except LabError as error:
            outcome["error"] = [error.attempt, error.fact, error.fix]
    outcome["warnings"] = [str(one.message) for one in warned if "autoscaler" in str(one.message)]
    outcome["left"] = sorted(name for name in os.environ if name.startswith("RAY_"))
    print(json.dumps(outcome))


if __name__ == "__main__":
    main(sys.argv[1])
