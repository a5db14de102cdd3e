"""Lesson 04: the global batch, a loop to fix, a loop that resumes, sharding once."""

from typing import Any

from course.exercises.answers import Wrong, close_to, describe, number, returns
from course.exercises.registry import Lesson
from course.exercises.running import returned
from course.models import KERAS_2

LESSON = Lesson("04", "TensorflowTrainer")


@LESSON.exercise(
    "04-1 · A batch for all of them",
    "`batch_size` is for one update, and all workers make one update together.",
    "TensorFlow divides the batch it is given by the number of workers.",
    "Right: 4 times 48. By mistake: a quarter of 48 in each worker, of 1,152 rows in each shard.",
)
def _global_batch(batch_size: Any, rows_per_worker: Any, updates: Any) -> None:
    near = {48: "that is what ONE worker should get", 12: "that is a quarter of 48: multiply"}
    close_to(batch_size, 4 * 48, what="the batch size", mistakes=near)
    divides = "TensorFlow reads batch_size as that of all workers, and divides it"
    near = {48: divides, 192: "of all, or of one?"}
    close_to(rows_per_worker, 48 // 4, what="the rows that a worker gets by mistake", mistakes=near)
    near = {
        4608 // 12: "all four workers use their 12 rows at the same time",
        24: "that is with the right batch size; by mistake a worker uses 12 of its 1,152 rows, not 48",
    }
    close_to(updates, 4608 // 48, what="the number of updates by mistake", mistakes=near)


@LESSON.exercise(
    "04-2 · Fix this loop",
    "Compare it with `train_loop`, line by line. Which two things are different?",
    "How does the strategy get to know the model's variables? And what does `fit` do with a batch?",
    "`with strategy.scope():` around the model, and `batch_size=64 * strategy.num_replicas_in_sync`.",
    seconds=90,
    stuck="one rank calls fit or report less often than the other, which waits for it",
)
def _fixed_loop(fixed_loop: Any, rows: int) -> None:
    """Runs on two workers, over the rows of the lesson."""
    replicas, updates = _numbers_of(fixed_loop, "replicas", "updates", name="fixed_loop")
    if replicas == 1:
        fact = "each worker trains a model of its own, and nothing is shared"
        raise Wrong(f"the model knows one replica: {fact}")
    shard = rows // 2
    near = {64: None, 32: "it used 32: `fit` divides the batch", 128: "it used 128: the global batch is 256"}
    # The rows of the last step depend on who divides them, so it may be one step more.
    used = [size for size in near if updates + shard // -size in (0, 1)]
    remark = near[used[0]] if used else "not 64 rows per step"
    if remark:
        raise Wrong(f"{updates} updates in an epoch, for {shard} rows of each worker: {remark}")


@LESSON.exercise(
    "04-3 · A loop that resumes",
    "`ray.train.get_checkpoint()` is None in a new run. Otherwise it has model.keras and state.json.",
    "`state.json` has the last epoch that was saved. Which one comes next?",
    '`tf.keras.models.load_model(f"{folder}/model.keras")`, `state["epoch"] + 1`, and `initial_epoch=first`.',
    seconds=120,
    stuck="one rank saves or reports less often than the other, which waits for it",
)
def _resumes(train_resumable: Any) -> None:
    """Runs on two workers; Ray restarts it after its second epoch has failed."""
    try:
        options = {"name": "train_resumable", "max_failures": 1}
        first, updates, replicas = _numbers_of(train_resumable, "first", "updates", "replicas", **options)
    except Wrong as wrong:
        if "the disk is full" not in str(wrong):
            raise
        raise Wrong("after the crash epoch 0 came again, and that was saved: which is next?") from None
    if replicas == 1:
        raise Wrong("the loaded model knows one replica: load it inside `strategy.scope()`, too")
    near = {0: "after the crash it started over", 2: "the epoch that failed was never saved: repeat it"}
    close_to(first, 1, what="the first epoch after the crash", mistakes=near)
    near = {
        8: "the two epochs after the crash, with an optimizer that starts over",
        4: "one epoch only: `initial_epoch` is not `first`",
        16: "four epochs: `initial_epoch` is not `first`",
    }
    close_to(updates, 12, what="the updates of the optimizer over all epochs", mistakes=near)


def _numbers_of(train_loop: Any, *keys: str, **options: Any) -> list[float]:
    """These entries of the dict that a loop returns on two workers."""
    from ray.train.tensorflow import TensorflowTrainer

    found = returned(
        train_loop, trainer=TensorflowTrainer, worker_runtime_env={"env_vars": KERAS_2}, **options
    )
    if not isinstance(found, dict) or not set(keys) <= set(found):
        raise Wrong(f"the loop returns {describe(found)}; leave its last line unchanged")
    return [number(found[key], key) for key in keys]


@LESSON.exercise(
    "04-4 · Sharded once",
    "How many rows does one worker get in each of the four cases? Then count all of them together.",
    "Ray and TensorFlow each cut what they get into as many parts as there are workers.",
    "Start with `rows * workers`, and divide by `workers` once for each of the two that cuts.",
)
def _rows_seen(rows_seen: Any) -> None:
    """With 2 and 3 workers, all four ways of sharding."""
    for rows, workers in ((1200, 2), (900, 3)):
        for by_ray, by_tensorflow in ((False, False), (False, True), (True, False), (True, True)):
            cuts = by_ray + by_tensorflow
            expected = rows * workers // workers**cuts
            near = {
                0: "every worker gets some rows, in all four cases",
                rows * workers: "that is every row once in EACH worker, and something cuts them",
                rows // workers: "that is the part of ONE worker, or what is left when rows are cut twice",
                rows: "Ray gives each worker its part, and TensorFlow takes a part of that part",
            }
            if not cuts:
                near[rows] = "nothing is cut: every worker gets all rows"
            args = (rows, workers, by_ray, by_tensorflow)
            returns(rows_seen, args, expected, name="rows_seen", mistakes=near)
