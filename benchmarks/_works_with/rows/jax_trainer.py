"""`JaxTrainer` on CPUs

Group: Other trainers of Ray Train
Packages: jax
Extra: yes
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
    parameters, first = {"weight": numpy.zeros((4, 1), "float32"), "bias": numpy.zeros(1, "float32")}, 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = dict(numpy.load(Path(folder, "state.npz")))
        first = int(state.pop("epoch")) + 1
        parameters = state
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
    """The predictions of NumPy in one process, and the last loss of each epoch on rank 0's rows."""
    weight, bias, losses = numpy.zeros((4, 1), "float32"), numpy.zeros(1, "float32"), []
    for _ in range(epochs):
        for start in range(0, problem.ROWS, 2 * problem.BATCH):
            x, y = X[start : start + 2 * problem.BATCH], Y[start : start + 2 * problem.BATCH]
            error = x @ weight + bias - y
            loss = float((error[::2] ** 2).mean())
            weight = weight - problem.RATE * 2 * x.T @ error / len(error)
            bias = bias - problem.RATE * 2 * error.mean(0)
        losses.append(loss)
    return X @ weight + bias, losses


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
