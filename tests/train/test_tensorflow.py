"""TensorFlow under Ray Train: it is one model, each row is seen once, no epoch is lost, errors are shown.

Nothing here imports TensorFlow: it is in the workers, with the Keras that each run asks for.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import ray.data
import ray.train
from ray import cloudpickle
from ray.train import RunConfig, ScalingConfig

from labkit import cluster, datasets, runs
from labkit.errors import RunFailed
from labkit.models.keras.backend import KERAS_2, KERAS_3
from labkit.panel.reporters import NullReporter
from labkit.train import TrainPanel
from labs import idle

pytestmark = pytest.mark.fault

# The workers cannot import this file: what is in it travels by value, as from a notebook.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

# A worker's part of the rows is a multiple of the global batch: TensorFlow divides each batch it is given,
# and would make two small ones of a last batch that is not full.
GLOBAL_BATCH, ROWS, EPOCHS = 64, 384, 4
# With seed 0 the order in which gradients are summed changed the weights by 2e-4 here, instead of 1e-7:
# models/weights.py says how rounding errors can grow.
SEED = 1


@pytest.fixture(scope="module")
def lab(home):
    os.environ.update(KERAS_2)  # the workers' imports are done ahead with the Keras of this process
    with cluster.start(nodes=2, cpus_per_node=2, preload="tensorflow") as lab:
        yield lab


def fit(home, loop, *, workers=2, environment=KERAS_2, data=None, run_name=None, **config):
    """Run `loop` in workers, one on each node; returns (panel, result)."""
    from ray.train.tensorflow import TensorflowTrainer

    panel = TrainPanel("tf", reporter=NullReporter(), rows=ROWS)
    trainer = TensorflowTrainer(
        loop,
        train_loop_config={"folder": str(home), **config},
        scaling_config=ScalingConfig(num_workers=workers, placement_strategy="SPREAD"),
        datasets={"train": data} if data is not None else None,
        run_config=RunConfig(
            name=run_name or panel.run_id,
            storage_path=str(home / "runs"),
            worker_runtime_env={"env_vars": environment},
            callbacks=[panel.callback()],
        ),
    )
    fit.panel = panel
    with panel.watch(trainer):
        return panel, trainer.fit()


def fails(home, loop, **options):
    """(error, panel) of a run that must fail."""
    with pytest.raises(RunFailed) as caught:
        fit(home, loop, **options)
    return caught.value, fit.panel


def distance(a, b):
    return max(float(np.abs(x - y).max()) for x, y in zip(a, b, strict=True))


def weights_of(home, name, rank=0):
    with np.load(home / f"{name}-{rank}.npz") as file:
        return [file[key] for key in sorted(file.files, key=lambda key: int(key[4:]))]


# -- what the workers run ---------------------------------------------------------------------------


def place():
    context = ray.train.get_context()
    return context.get_world_rank(), context.get_world_size()


def mine(rank, world):
    """Rows of this rank in the order in which one process would take them, `GLOBAL_BATCH` at a time."""
    steps = np.arange(ROWS).reshape(-1, world, GLOBAL_BATCH // world)
    return steps[:, rank].ravel()


def batches(rows, *, shard_again=False):
    import tensorflow as tf
    from ray.train.tensorflow import prepare_dataset_shard

    from labkit.models.keras import to_input

    train = datasets.load("digits", split="train")[:ROWS]
    arrays = to_input(train.images[rows]), train.labels[rows]
    made = tf.data.Dataset.from_tensor_slices(arrays).batch(GLOBAL_BATCH)
    # Of unknown length, as what comes from Ray Data: Keras 2 counts batches before TensorFlow divides them.
    return made if shard_again else prepare_dataset_shard(made.filter(lambda x, y: True))


def compiled(model, optimizer):
    import tensorflow as tf

    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    return model


def keep(config, name, model):
    np.savez(f"{config['folder']}/{name}-{place()[0]}.npz", *model.get_weights())


def with_fit(config):
    """`fit` from the same weights on, with rows that are sharded by hand or by TensorFlow."""
    import tensorflow as tf

    from labkit.models.keras import mlp
    from labkit.models.keras.callback import PanelCallback

    strategy, (rank, world) = tf.distribute.MultiWorkerMirroredStrategy(), place()
    assert strategy.num_replicas_in_sync == world
    feeds = {"right": batches(mine(rank, world))}
    if world > 1:
        feeds["auto"] = batches(np.arange(ROWS), shard_again=True)
    for name, rows in feeds.items():
        with strategy.scope():
            model = compiled(mlp(seed=SEED), tf.keras.optimizers.SGD(0.1))
        follow = PanelCallback(rows_per_step=GLOBAL_BATCH // world)
        model.fit(rows, epochs=2, verbose=0, callbacks=[follow])
        keep(config, f"{name}{world}", model)
    # The same with an optimizer that has a memory, without an interruption.
    with strategy.scope():
        model = compiled(mlp(seed=SEED), tf.keras.optimizers.Adam(0.001))
    model.fit(batches(np.arange(ROWS), shard_again=True), epochs=EPOCHS, verbose=0)
    keep(config, f"adam{world}", model)
    ray.train.report({})


def by_hand(config):
    """`strategy.run` on layers and an optimizer of Keras 3."""
    import tensorflow as tf

    from labkit.models.keras import mlp, to_input

    assert tf.keras.Model.__module__.startswith("keras.")
    strategy, (rank, world) = tf.distribute.MultiWorkerMirroredStrategy(), place()
    train = datasets.load("digits", split="train")[:ROWS]
    loss_of_rows = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    for name, optimizer_class, rate, epochs in (("sgd", "SGD", 0.1, 2), ("adam", "Adam", 0.001, EPOCHS)):
        with strategy.scope():
            model, optimizer = mlp(seed=SEED), getattr(tf.keras.optimizers, optimizer_class)(rate)
            optimizer.build(model.trainable_variables)

        def worker_step(x, y, model=model, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(loss_of_rows(y, model(x, training=True))) / GLOBAL_BATCH
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        @tf.function
        def step(x, y, worker_step=worker_step):
            return strategy.reduce("SUM", strategy.run(worker_step, args=(x, y)), axis=None)

        for _ in range(epochs):
            for rows in mine(rank, world).reshape(-1, GLOBAL_BATCH // world):
                step(to_input(train.images[rows]), train.labels[rows])
        keep(config, f"raw-{name}{world}", model)
    ray.train.report({})


def three_feeds(config):
    """The rows that each way of feeding brings to this worker, by their number."""
    import tensorflow as tf
    from ray.train.tensorflow import prepare_dataset_shard

    strategy, (rank, world) = tf.distribute.MultiWorkerMirroredStrategy(), place()
    shard = ray.train.get_dataset_shard("train")

    def generate():
        for batch in shard.iter_tf_batches(batch_size=GLOBAL_BATCH):
            yield batch["id"]

    from_generator = tf.data.Dataset.from_generator(
        generate, output_signature=tf.TensorSpec((None,), tf.int64)
    )
    feeds = {
        "to_tf": shard.to_tf("id", "id", batch_size=GLOBAL_BATCH).map(lambda x, y: x),
        "generator": prepare_dataset_shard(from_generator),
        "auto": tf.data.Dataset.range(ROWS).batch(GLOBAL_BATCH),
    }
    for name, rows in feeds.items():
        # As `fit` does with what it is given.
        seen = list(strategy.experimental_distribute_dataset(rows))
        parts = [part.numpy() for batch in seen for part in strategy.experimental_local_results(batch)]
        found = {"rows": np.concatenate(parts).tolist(), "largest": max(map(len, parts))}
        Path(config["folder"], f"feed-{name}{world}-{rank}.json").write_text(json.dumps(found))
    ray.train.report({})


def resumable(config):
    """Adam, one epoch at a time, from the last checkpoint on."""
    import tensorflow as tf

    from labkit.models.keras import mlp

    strategy, (rank, world), first = tf.distribute.MultiWorkerMirroredStrategy(), place(), 0
    checkpoint = ray.train.get_checkpoint() or config.get("checkpoint")
    with strategy.scope():
        if checkpoint:
            with checkpoint.as_directory() as folder:
                model = tf.keras.models.load_model(f"{folder}/model.keras")
                first = int(Path(folder, "epoch").read_text()) + 1
        else:
            model = compiled(mlp(seed=SEED), tf.keras.optimizers.Adam(0.001))
    rows = batches(np.arange(ROWS), shard_again=True)
    print("first", first, "updates", int(model.optimizer.iterations.numpy()))
    for epoch in range(first, EPOCHS):
        if epoch == config.get("breaks_in"):
            # Ray's controller looks for reports five times a second, and drops what one rank reported
            # if it sees another one's error first. So wait until it has the last epoch's.
            ray.train.get_all_reported_checkpoints(ray.train.CheckpointConsistencyMode.COMMITTED)
            raise OSError("the disk is full")
        model.fit(rows, initial_epoch=epoch, epochs=epoch + 1, verbose=0)
        with tempfile.TemporaryDirectory() as folder:
            model.save(f"{folder}/model.keras")
            Path(folder, "epoch").write_text(str(epoch))
            kept = ray.train.Checkpoint.from_directory(folder) if rank == 0 else None
            ray.train.report({"epoch": epoch}, checkpoint=kept)
    keep(config, f"resumed{world}", model)


def outside_of_the_scope(config):
    import tensorflow as tf

    from labkit.models.keras import mlp
    from labkit.models.keras.callback import PanelCallback

    strategy, (rank, world) = tf.distribute.MultiWorkerMirroredStrategy(), place()
    assert strategy.num_replicas_in_sync == world
    model = compiled(mlp(seed=0), "sgd")
    model.fit(batches(mine(rank, world)), verbose=0, callbacks=[PanelCallback()])


def with_fit_of_keras_3(config):
    import tensorflow as tf

    from labkit.models.keras import mlp

    strategy, (rank, world) = tf.distribute.MultiWorkerMirroredStrategy(), place()
    with strategy.scope():
        model = compiled(mlp(seed=0), "sgd")
    model.fit(batches(mine(rank, world)), verbose=0)


# -- one model --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(lab, home):
    """Two workers on two nodes, and one: the same loop."""
    return {workers: fit(home, with_fit, workers=workers)[0] for workers in (2, 1)}


def test_one_loop_trains_the_same_model_on_one_worker_and_on_two_nodes(trained, home):
    for workers, panel in trained.items():
        assert panel.state.status == "finished"
        assert {worker.rank for worker in panel.state.workers.values()} == set(range(workers))
    assert {worker.node for worker in trained[2].state.workers.values()} == {"head", "node-2"}
    for name, reference, tolerance in (
        ("right", "right", 1e-6),
        ("auto", "right", 1e-6),
        ("adam", "adam", 1e-4),
    ):
        both = weights_of(home, f"{name}2", 0)
        assert distance(both, weights_of(home, f"{name}2", 1)) == 0
        assert distance(both, weights_of(home, f"{reference}1")) < tolerance


def test_the_panel_followed_fit(trained):
    record = runs.latest("tf")
    assert record.state == "finished" and len(record.seconds_per_epoch) >= 2
    for panel in trained.values():
        begun = [metrics["loss"] for _, metrics in panel.state.curve if "loss" in metrics]
        # Ten digits, and a model that knows nothing: ln 10 = 2.3, however many workers there are.
        assert 2 < begun[0] < 2.7
        assert all(metrics["accuracy"] <= 1 for _, metrics in panel.state.curve if "accuracy" in metrics)


def test_a_loop_by_hand_with_keras_3_trains_that_model_too(trained, home):
    """Its optimizer adds up the gradients of all workers: were it not so, the weights would differ."""
    fit(home, by_hand, environment=KERAS_3)
    for name, reference, tolerance in (("raw-sgd2", "right1", 1e-6), ("raw-adam2", "adam1", 1e-4)):
        assert distance(weights_of(home, name, 0), weights_of(home, name, 1)) == 0
        assert distance(weights_of(home, name), weights_of(home, reference)) < tolerance


# -- the rows ---------------------------------------------------------------------------------------


def rows_of(home, name):
    return [json.loads((home / f"feed-{name}2-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def numbered(lab):
    return ray.data.range(ROWS, override_num_blocks=4)


@pytest.fixture(scope="module")
def fed(lab, home, numbered):
    fit(home, three_feeds, data=numbered)


@pytest.mark.parametrize("name", ["to_tf", "generator", "auto"])
def test_each_row_goes_to_one_worker(fed, home, name):
    first, second = rows_of(home, name)
    assert sorted(first["rows"] + second["rows"]) == list(range(ROWS))
    assert len(first["rows"]) == len(second["rows"])
    assert first["largest"] == second["largest"] == GLOBAL_BATCH // 2  # what is given is divided


# -- after a crash ----------------------------------------------------------------------------------


def test_a_crash_loses_nothing(trained, lab, home):
    error, panel = fails(home, resumable, run_name="crash", breaks_in=2)
    assert "OSError: the disk is full" in error.fact and panel.state.failures[-1].rank in (0, 1)
    assert idle(lab)
    panel, result = fit(home, resumable, run_name="crash")
    updates = 2 * ROWS // GLOBAL_BATCH
    printed = {line.partition("] ")[2] for line in panel.state.prints}
    hdf5 = {line for line in printed if line.startswith("warning: You are saving your model as an HDF5 file")}
    assert printed - hdf5 == {f"first 2 updates {updates}"}
    assert sorted(metrics["epoch"] for _, metrics in result.best_checkpoints) == [0, 1, 2, 3]
    # As if it had never stopped: also what the optimizer remembers.
    assert distance(weights_of(home, "resumed2"), weights_of(home, "adam2")) < 1e-6
    # And from a checkpoint in the settings, with another number of workers.
    checkpoint = next(c for c, metrics in result.best_checkpoints if metrics["epoch"] == 1)
    fit(home, resumable, workers=1, checkpoint=checkpoint)
    assert distance(weights_of(home, "resumed1"), weights_of(home, "adam1")) < 1e-4


# -- what goes wrong --------------------------------------------------------------------------------


def test_a_model_outside_of_the_scope(lab, home):
    error, panel = fails(home, outside_of_the_scope)
    assert "LabError: could not train one model in 2 workers" in panel.state.failures[-1].text
    assert "rank " in error.fact and idle(lab)


# -- which Keras ------------------------------------------------------------------------------------


def test_fit_of_keras_3_fails_with_two_workers(lab, home):
    """Ray issue 47464, keras issue 20585. When this fails, they are fixed, and tf-keras may go."""
    error, _ = fails(home, with_fit_of_keras_3, environment=KERAS_3)
    assert "PerReplica" in fit.panel.state.failures[-1].text or "PerReplica" in error.fact
    assert idle(lab)
