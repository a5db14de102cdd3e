"""Validate a checkpoint in a function, in a TorchTrainer and with map_batches: lesson 06b, in plain Ray."""

import tempfile
import time
from pathlib import Path

import ray.data
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchTrainer

DIGITS, STORAGE = Path(__file__).resolve().parents[2] / "datasets/digits.parquet", tempfile.mkdtemp()
ray.init("local", num_cpus=4, log_to_driver=False)
ROWS = ray.data.read_parquet(str(DIGITS))


class Predictor:
    def __init__(self, checkpoint):
        self.model = torch.nn.Linear(784, 10)
        self.model.load_state_dict(torch.load(f"{checkpoint.path}/model.pt", weights_only=True))

    @torch.no_grad()
    def __call__(self, batch):
        images, labels = torch.as_tensor(batch["image"]), torch.as_tensor(batch["label"])
        guesses = self.model(images.float().flatten(1) / 255).argmax(dim=1)
        return {"right": (guesses == labels).double().numpy()}


def counts(predictor, batches):
    rights = [predictor(batch)["right"] for batch in batches.iter_torch_batches(batch_size=128)]
    return torch.tensor([sum(right.sum() for right in rights), sum(len(right) for right in rights)])


def in_a_function(checkpoint):
    right, rows = counts(Predictor(checkpoint), ROWS).tolist()
    return right / rows


def evaluate(config):
    totals = counts(Predictor(config["checkpoint"]), config["parts"][get_context().get_world_rank()])
    torch.distributed.all_reduce(totals)
    return (totals[0] / totals[1]).item()


def in_a_trainer(checkpoint):
    config = {"checkpoint": checkpoint, "parts": ROWS.streaming_split(2, equal=False)}  # drops no row
    storage, scaling = RunConfig(storage_path=STORAGE), ScalingConfig(num_workers=2)
    trainer = TorchTrainer(evaluate, train_loop_config=config, scaling_config=scaling, run_config=storage)
    return trainer.fit().return_value


def in_map_batches(checkpoint):
    options = {"batch_size": 128, "compute": ray.data.ActorPoolStrategy(size=2)}
    return ROWS.map_batches(Predictor, fn_constructor_args=(checkpoint,), **options).mean("right")


torch.save(torch.nn.Linear(784, 10).state_dict(), f"{STORAGE}/model.pt")
for way in (in_a_function, in_a_trainer, in_map_batches):
    begin, accuracy = time.perf_counter(), way(Checkpoint(STORAGE))
    print(f"{way.__name__}: {accuracy:.6f} in {time.perf_counter() - begin:.1f} s")
