"""Lesson 05: count trials, a trainable, rungs, a sweep to fix, drivers and workers."""

import os
import tempfile
from typing import TYPE_CHECKING, Any

from labkit.errors import LabError
from labkit.exercises.answers import (
    NotAttempted,
    Wrong,
    close_to,
    describe,
    is_blank,
    list_is,
    number,
    result_of,
    returns,
)
from labkit.exercises.registry import Lesson
from labkit.exercises.running import last_line

if TYPE_CHECKING:
    from ray.tune import ResultGrid, Tuner

LESSON = Lesson("05", "Tune sweeps")
_METHODS = ("setup", "reset_config", "step", "save_checkpoint", "load_checkpoint")


@LESSON.exercise(
    "05-1 · Count before you pay",
    "Which of the four entries says *every one of these*?",
    "Multiply the lengths of the grids. What does `num_samples` do with the result?",
    "2 optimizers × 4 widths, five times. With `choice`, the width draws one value and multiplies nothing.",
)
def _count(trials: Any, with_choice: Any) -> None:
    near = {
        8: "that is the grid once, and `num_samples=5` repeats all of it",
        5: "that is without a grid; each sample is a whole grid",
        30: "grids multiply: every optimizer meets every width",
        200: "`loguniform` draws one value for each trial; it multiplies nothing",
    }
    close_to(trials, 40, what="the number of trials", mistakes=near)
    near = {
        40: "`choice` draws one width for each trial; it multiplies nothing",
        5: "the grid of optimizers is still there",
        2: "`num_samples=5` repeats the grid of optimizers",
    }
    close_to(with_choice, 10, what="the number of trials with choice", mistakes=near)


@LESSON.exercise(
    "05-2 · A trainable of your own",
    "Which two values does the next step depend on? `setup` and `reset_config` set both of them.",
    "`save_checkpoint` writes `self.x` to a file in `folder`, and `load_checkpoint` reads it from there.",
    'In `reset_config`: `self.x, self.lr = 0.0, config["lr"]`, then `return True`. `setup` calls it.',
    seconds=60,
    stuck="a method that doesn't return, or a cluster without a free CPU",
)
def _trainable(cls: Any) -> None:
    """Its methods are called here first; then three trials run one after the other in one process."""
    if not isinstance(cls, type) or not all(hasattr(cls, name) for name in ("train", *_METHODS)):
        raise Wrong(f"your answer is {describe(cls)}, and a class derived from tune.Trainable is expected")
    blank = [name for name in _METHODS if is_blank(getattr(cls, name))]
    if len(blank) == len(_METHODS):
        raise NotAttempted
    if blank:
        raise Wrong(f"{blank[0]} does nothing yet")
    one, other = _trial(cls, 0.1), _trial(cls, 0.1)
    for steps in (1, 2):
        near = {_expected(0.1, steps - 1): "that is the loss before the step: move x first"}
        close_to(_loss(one), _expected(0.1, steps), what=f"the loss after {steps} steps", mistakes=near)
    with tempfile.TemporaryDirectory() as folder:
        result_of(one.save_checkpoint, folder, what="save_checkpoint")
        if not os.listdir(folder):
            raise Wrong("save_checkpoint wrote no file into its folder")
        result_of(other.load_checkpoint, folder, what="load_checkpoint")
    fact = "the saved trial's next step would give another one"
    close_to(_loss(other), _expected(0.1, 3), what="after load_checkpoint the loss", otherwise=fact)
    one.config = {"lr": 0.25}  # as Tune does before it calls reset_config
    if (returned := result_of(one.reset_config, one.config, what="reset_config")) is not True:
        raise Wrong(f"reset_config returns {describe(returned)}: only True tells Tune that it worked")
    near = {_expected(0.1, 1): "the trial still uses the old learning rate"}
    fact = "the trial doesn't start at x = 0: something of the old trial is left"
    what = "after reset_config the loss"
    close_to(_loss(one), _expected(0.25, 1), what=what, mistakes=near, otherwise=fact)
    rates = [0.1, 0.25, 0.4]
    results = run_sweep(cls, {"lr": {"grid_search": rates}}, iterations=3, name="your trainable")
    for rate, result in zip(rates, results, strict=True):
        close_to(result.metrics["loss"], _expected(rate, 3), what=f"in the sweep, the loss for lr={rate}")


def _trial(cls: type, lr: float) -> Any:
    trial = cls.__new__(cls)  # Trainable's own __init__ makes folders and log files
    trial.config = {"lr": lr}
    result_of(lambda: trial.setup(trial.config), what="setup")
    return trial


def _loss(trial: Any) -> float:
    metrics = result_of(trial.step, what="step")
    if not isinstance(metrics, dict) or "loss" not in metrics:
        raise Wrong(f'step returns {describe(metrics)}, and {{"loss": …}} is expected')
    return number(metrics["loss"], "the loss")


def _expected(lr: float, steps: int) -> float:
    return (3 * (1 - 2 * lr) ** steps) ** 2


@LESSON.exercise(
    "05-3 · Other rungs",
    "The first rung is the grace period.",
    "Each is 4 times as high as the one below, as long as it is below `max_t`.",
    "2, then 2 × 4, then 2 × 4 × 4. For the trials: 64, divided by 4 at each rung.",
)
def _rungs(rungs: Any, left: Any) -> None:
    early = "before `grace_period` no trial is stopped"
    doubled = "each rung is `reduction_factor` times as high as the one before, and that is 4"
    near = {
        (1, 4, 16): early,
        (1, 4, 16, 64): early,
        (2, 4, 8, 16, 32): doubled,
        (2, 4, 8, 16, 32, 64): doubled,
        (2, 8, 32, 128): "128 is beyond max_t: no trial gets there",
        (2, 8, 32, 64): "at 64, which is max_t, all trials end: none is compared there",
    }
    list_is(rungs, [2, 8, 32], what="the list of rungs", mistakes=near)
    near = {
        4: "that is how many pass the second rung; there is one more",
        16: "that is how many pass the first rung",
        64: "that is all of them",
        3: "that is the number of rungs",
    }
    close_to(left, 1, what="the number of trials that are left", mistakes=near)


@LESSON.exercise(
    "05-4 · Fix this sweep",
    "Go line by line. What does `descend` read and report? How many CPUs does a node have?",
    "A plain list isn't searched. And a hill should be high; what about a loss?",
    '`{"CPU": 1}`, `{"lr": tune.grid_search([…])}`, `metric="loss"`, `mode="min"`.',
    seconds=60,
    stuck="a trial that asks for more than the cluster has",
)
def _fixed(fixed_sweep: Any) -> None:
    results = run_tuner(result_of(fixed_sweep, what="fixed_sweep"), "what fixed_sweep returns")
    rates = sorted(str(result.config.get("lr")) for result in results)
    if rates != ["0.01", "0.1", "0.5"]:
        have = f"the trials have the learning rates {', '.join(rates)}"
        raise Wrong(f"{have}; each of the three should have its own")
    best = result_of(results.get_best_result, what="get_best_result()")
    rate, loss = best.config["lr"], best.metrics["loss"]
    if rate != 0.5:
        raise Wrong(f"the best trial has lr={rate} and the loss {loss:.3g}: the largest")


@LESSON.exercise(
    "05-5 · Drivers and workers",
    "What does one trial use, all in all, at the same time? Count CPUs first, then GPUs.",
    "All of its workers, and its driver. How often does that fit into the CPUs, and how often into the GPUs?",
    "The smaller of `cpus // (workers * worker_cpus + driver_cpus)` and `gpus // (workers * worker_gpus)`.",
)
def _at_once(trials_at_once: Any) -> None:
    # cpus, gpus, workers, CPUs and GPUs per worker, CPUs per driver, the answer, a likely mistake, a remark
    for *args, expected, mistake, remark in (
        (8, 0, 2, 1, 0, 0.5, 3, 4, "the driver of each trial needs a part of a CPU, too"),
        (12, 0, 3, 1, 0, 1, 3, 4, "the driver of each trial needs a CPU, too"),
        (14, 0, 2, 2, 0, 0.5, 3, 5, "each worker uses more than one CPU"),
        (2, 0, 2, 1, 0, 1, 0, 1, "with its driver it does not fit: not one could train"),
        (16, 0, 1, 1, 0, 0.5, 10, 15, "each trial has a driver of its own"),
        (64, 8, 4, 1, 1, 0.5, 2, 14, "each worker also needs a GPU, and there are only 8"),
        (5, 8, 2, 1, 1, 0.5, 2, 4, "there are enough GPUs, but not enough CPUs"),
        (4, 6, 2, 0, 1, 0.5, 3, 1, "a worker that asks for 0 CPUs needs none"),
    ):
        cpus, _, workers, worker_cpus, _, driver_cpus = args
        exact = cpus / (workers * worker_cpus + driver_cpus)
        near = {mistake: remark, exact: "there are only whole trials"}
        returns(trials_at_once, args, expected, name="trials_at_once", mistakes=near)


def run_sweep(trainable: type, space: dict[str, Any], *, iterations: int, name: str) -> "ResultGrid":
    """Sweep a `tune.Trainable` in one process: each trial ends after `iterations` steps, with a checkpoint.

    Raises:
        Wrong: a trial fails; `name` is what the message calls the trainable.
    """
    from ray import tune

    with tempfile.TemporaryDirectory(prefix="labkit-check-", ignore_cleanup_errors=True) as folder:
        run = tune.RunConfig(
            storage_path=folder,
            stop={"training_iteration": iterations},
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
        )
        one = tune.TuneConfig(reuse_actors=True, max_concurrent_trials=1)
        return run_tuner(tune.Tuner(trainable, param_space=space, tune_config=one, run_config=run), name)


def run_tuner(tuner: "Tuner", name: str) -> "ResultGrid":
    """Check the learner's `tuner` as the panel would, run it without Tune's tables, and return the results.

    Raises:
        NotAttempted: a ``...`` is still in the trainable.
        Wrong: it cannot work, or a trial fails.
    """
    import ray
    from ray import tune

    from labkit.tune.checks import check_plan
    from labkit.tune.trials import TunerPlan, names_without_metric, without_noise

    if not isinstance(tuner, tune.Tuner):
        raise Wrong(f"{name} is {describe(tuner)}, and a tune.Tuner is expected")
    plan = TunerPlan.from_tuner(tuner)
    try:
        check_plan(plan, [node["Resources"] for node in ray.nodes() if node["Alive"]])
        with without_noise():
            plan.run.verbose, plan.run.progress_reporter = 0, tune.CLIReporter()
            results = tuner.fit()
    except LabError as error:
        raise Wrong(error.fact) from error
    except Exception as error:
        if (names := names_without_metric(str(error))) is not None:
            reported = ", ".join(map(repr, names)) or "nothing"
            raise Wrong(f"trials are compared by {plan.metric!r}, and they report {reported}") from error
        raise Wrong(f"fit() raised {type(error).__name__}: {last_line(error)}") from error
    if results.num_errors:
        last = last_line(results.errors[0])
        if "ellipsis" in last.lower():
            raise NotAttempted
        raise Wrong(f"{results.num_errors} of {len(results)} trials failed, the first with {last}")
    return results
