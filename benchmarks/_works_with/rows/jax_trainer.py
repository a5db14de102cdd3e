"""`JaxTrainer` on CPUs

Group: Other trainers of Ray Train
Packages: jax
Asked: one model, one process, epochs, loss, resumes
Guess: all
Line: `JaxConfig(use_gpu=True)` with `JAX_PLATFORMS=cpu` in `RunConfig(worker_runtime_env=…)`
"""

import tempfile
from pathlib import Path

import numpy
import ray.train
from ray.train.v2.jax import JaxTrainer
from ray.train.v2.jax.config import JaxConfig

from benchmarks._works_with import predicted, problem

X, Y = problem.X.numpy(), problem.Y.numpy()


def loop(config):
    import jax
    from jax.experimental import multihost_utils

    @jax.value_and_grad
    def loss_and_gradients(parameters, x, y):
        return ((x @ parameters["weight"] + parameters["bias"] - y) ** 2).mean()

    rank = ray.train.get_context().get_world_rank()
    rows = problem.dealt(rank)
    model = problem.new_model()
    parameters = {"weight": model.weight.detach().numpy().T, "bias": model.bias.detach().numpy()}
    first = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            parameters = dict(numpy.load(Path(folder, "state.npz")))
        first = int(parameters.pop("epoch")) + 1
    for epoch in range(first, config["epochs"]):
        for start in range(0, len(rows), problem.BATCH):
            batch = rows[start : start + problem.BATCH]
            loss, gradients = loss_and_gradients(parameters, X[batch], Y[batch])
            of_ranks = multihost_utils.process_allgather(gradients)
            for name in parameters:
                parameters[name] = parameters[name] - problem.RATE * of_ranks[name].mean(0)
        checkpoint = None
        if rank == 0:
            folder = tempfile.mkdtemp()
            numpy.savez(Path(folder, "state.npz"), epoch=epoch, **parameters)
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"loss": float(loss), "epoch": epoch}, checkpoint=checkpoint)
    problem.keep_predictions(config, X @ parameters["weight"] + parameters["bias"])


def in_one_process(epochs):
    """The predictions of PyTorch in one process, and the last loss of each epoch on rank 0's rows."""
    reference = problem.Reference(epochs)
    return reference.model(problem.X).detach(), reference.last


def measured(storage):
    return predicted.measured(
        JaxTrainer,
        loop,
        in_one_process,
        "jax",
        storage,
        env_vars={"JAX_PLATFORMS": "cpu"},
        jax_config=JaxConfig(use_gpu=True),
    )
