"""Lesson 05: count trials, rungs, a sweep of one's own, a sweep to fix."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import LabError
from course.exercises.answers import (
    NotAttempted,
    Wrong,
    close_to,
    describe,
    expect_function,
    list_is,
    result_of,
)
from course.exercises.registry import Lesson
from course.exercises.running import folder_of_check, last_line

if TYPE_CHECKING:
    from ray.tune import ResultGrid, Tuner

LESSON = Lesson("05", "Sweeps with Tune")


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
        (2, 6, 18, 54): "that is the factor of the lesson's own sweep; here it is 4",
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
    "05-6 · A sweep of your own",
    "How often does Tune hear from `descend` now? And which function draws from each power of ten equally often?",
    "Write x into a file in a temporary folder, and report, both inside the loop. The Tuner needs a metric, a "
    "mode, nine samples and an `ASHAScheduler`.",
    '`tune.report({"loss": …}, checkpoint=tune.Checkpoint.from_directory(place))`; `tune.loguniform(0.001, 1)`; '
    "`ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)`.",
    seconds=90,
    stuck="a loop that doesn't end, or a cluster without a free CPU",
)
def _sweep(descend: Any, search: Any) -> None:
    """The learner's sweep; what its trials reported and saved is compared with the same steps here."""
    from labkit.tune.trials import TunerPlan

    expect_function(descend, "descend")
    with folder_of_check() as folder:
        tuner = result_of(search, folder, what="search")
        _is_as_asked(tuner, folder)
        results = run_tuner(tuner, "what search returns")
        if len(results) != 9:
            raise Wrong(f"the sweep has {len(results)} trials, and nine are expected: num_samples")
        for result in results:
            _reported_each_step(result, result.config["lr"])
        _stopped_at_rungs([len(result.metrics_dataframe) for result in results])
        compared = TunerPlan.from_tuner(tuner).compared  # the metric may be the scheduler's
        best = result_of(results.get_best_result, *compared, what="get_best_result").metrics["loss"]
        if best > min(result.metrics["loss"] for result in results):
            raise Wrong(
                f"the best result has the loss {best:.3g}, and another trial has less: metric and mode"
            )


def _is_as_asked(tuner: Any, folder: str) -> None:
    """Look at the folder, the learning rate's range and the rungs: nine trials alone don't show them."""
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    from labkit.tune.trials import TunerPlan

    if not isinstance(tuner, tune.Tuner):
        return  # `run_tuner` says so
    plan = TunerPlan.from_tuner(tuner)
    place, space = Path(plan.run.storage_path), dict(plan.space)
    if Path(folder) not in (place, *place.parents):
        raise Wrong(f"its results go to {place}, and not below `folder`: what does RunConfig need?")
    if space.get("steps") != 9:
        raise Wrong(f"its trials get {space.get('steps')} as 'steps', and nine are asked for")
    _drawn_from_each_power_of_ten(space.get("lr"))
    scheduler = plan.options.scheduler
    if scheduler is None:
        raise Wrong("no trial would be stopped early: is there a scheduler?")
    if not isinstance(scheduler, ASHAScheduler):
        raise Wrong(f"the scheduler is {type(scheduler).__name__}, and an ASHAScheduler was asked for")
    first, second = (*plan.rungs, math.inf)[:2]
    if first != 1:
        raise Wrong(f"the first rung is after {first:g} steps; you were asked for 1")
    if second == math.inf:
        raise Wrong("there is a rung after 1 step and none after 3: what are max_t and reduction_factor?")
    if second != 3:
        raise Wrong(f"the factor is {second:g}: one trial in {second:g} continues, and not the best third")


def _drawn_from_each_power_of_ten(rate: Any) -> None:
    from ray.tune.search.sample import Categorical, Domain, Float, Uniform

    if rate is ...:
        raise NotAttempted
    if rate is None:
        raise Wrong("param_space has no 'lr', which descend reads")
    if isinstance(rate, Mapping) and "grid_search" in rate:
        raise Wrong("the learning rate is a `grid_search`: its values are yours, and none is drawn")
    if not isinstance(rate, Domain):
        raise Wrong(f"each trial gets the learning rate {describe(rate)}; none is drawn")
    if isinstance(rate, Categorical):
        raise Wrong(f"`choice` draws one of {len(rate)} values, and none between them")
    if isinstance(rate, Float) and not (math.isclose(rate.lower, 1e-3) and math.isclose(rate.upper, 1)):
        raise Wrong(f"the learning rate is between {rate.lower:g} and {rate.upper:g}, not 0.001 and 1")
    if isinstance(rate, Float) and isinstance(rate.get_sampler(), Uniform):
        raise Wrong(
            "the learning rate is drawn by `uniform`, nine times in ten above 0.1: "
            "`loguniform` draws from each power of ten equally often"
        )
    drawn = [float(one) for one in rate.sample({}, size=600)]  # a function of the learner's may draw them
    shares = [sum(low <= one <= 10 * low for one in drawn) for low in (0.001, 0.01, 0.1)]
    if min(shares) < 140 or sum(shares) < 600:  # 200 is expected, with a standard deviation of 12
        raise Wrong(
            f"of 600 learning rates drawn, {shares[0]} are between 0.001 and 0.01, {shares[1]} up to 0.1 "
            f"and {shares[2]} up to 1"
        )


def _stopped_at_rungs(lengths: list[int]) -> None:
    if set(lengths) == {9}:
        raise Wrong("no trial was stopped early: is there a scheduler?")
    if max(lengths) > 9 or not set(lengths) <= {1, 3, 9}:
        raise Wrong(f"trials ended after {sorted(set(lengths))} steps; with your rungs, after 1, 3 or 9")
    if max(lengths) < 9:
        raise Wrong("no trial made nine steps: what are config['steps'] and max_t?")


def _reported_each_step(result: Any, rate: float) -> None:
    if "loss" not in result.metrics:
        from labkit._tune import metrics_in

        names = ", ".join(map(repr, metrics_in(result.metrics)))
        raise Wrong(f"the trials report {names}, and 'loss' is asked for, as before")
    frame = result.metrics_dataframe
    steps = len(frame)
    for done, loss in enumerate(frame["loss"], start=1):
        near = {
            _loss_after(rate, done - 1): "that is the loss before the step: move x first",
            _loss_after(rate, 9): "that is the loss of the last step: report inside the loop",
        }
        what = f"with lr={rate:.3g}, the loss after step {done}"
        close_to(loss, _loss_after(rate, done), what=what, mistakes=near)
    if result.checkpoint is None:
        raise Wrong("its reports have no checkpoint, so nothing could be loaded afterwards")
    with result.checkpoint.as_directory() as place:
        try:
            x = float((Path(place) / "x.txt").read_text())
        except (OSError, ValueError) as error:
            raise Wrong(f"its checkpoint has no file x.txt with a number in it: {error}") from error
    expected = 3 - 3 * (1 - 2 * rate) ** steps
    near = {3 - 3 * (1 - 2 * rate) ** (steps - 1): "that is x before the last step"}
    # Two decimals of x are enough.
    close_to(x, expected, abs=0.0051, what="in the last checkpoint, x", mistakes=near)


def _loss_after(rate: float, steps: int) -> float:
    return (3 * (1 - 2 * rate) ** steps) ** 2


@LESSON.exercise(
    "05-4 · Fix this sweep",
    "Go line by line. What does `descend_once` read and report? How many CPUs does a node have?",
    "A plain list isn't searched. And a hill should be high; what about a loss?",
    '`{"CPU": 1}`, `{"lr": tune.grid_search([…])}`, `metric="loss"`, `mode="min"`.',
    seconds=60,
    stuck="a trial that asks for more than the cluster has",
)
def _fixed(fixed_sweep: Any) -> None:
    results = run_tuner(result_of(fixed_sweep, what="fixed_sweep"), "what fixed_sweep returns")
    rates = [_rate(result) for result in results]
    if sorted(map(str, rates)) != ["0.01", "0.1", "0.5"]:
        have = f"the trials have the learning rates {', '.join(sorted(map(str, rates)))}"
        raise Wrong(f"{have}; each of the three should have its own")
    best = _rate(result_of(results.get_best_result, what="get_best_result()"))
    if best != 0.5:
        raise Wrong(f"the best trial has lr={best}, and lr=0.5 ends with a smaller loss")


def _rate(result: Any) -> Any:
    """Its name may be changed in the space or in `descend_once`: both are repairs."""
    return result.config.get("lr", result.config.get("learning_rate"))


def run_tuner(tuner: "Tuner", name: str) -> "ResultGrid":
    """Check the learner's `tuner` as the panel would, run it without Tune's tables, and return the results.

    Raises:
        NotAttempted: a ``...`` is still in the trainable.
        Wrong: it cannot work, or a trial fails.
    """
    from ray import tune

    from labkit.local import cluster
    from labkit._tune import names_without_metric, without_lost_cpus, without_noise
    from labkit.tune.trials import TunerPlan

    if not isinstance(tuner, tune.Tuner):
        raise Wrong(f"{name} is {describe(tuner)}, and a tune.Tuner is expected")
    plan = TunerPlan.from_tuner(tuner)
    if (lab := cluster.current()) is None:
        raise Wrong("no cluster is connected: run the cell with cluster.start() first")
    try:
        plan.check(lab)
        with without_noise(), without_lost_cpus():
            plan.run.verbose, plan.run.progress_reporter = 0, tune.CLIReporter()
            results = tuner.fit()
    except LabError as error:
        raise Wrong(error.fact) from error
    except Exception as error:
        if (names := names_without_metric(str(error))) is not None:
            reported = ", ".join(map(repr, names)) or "nothing"
            raise Wrong(f"trials are compared by {plan.compared[0]!r}, and they report {reported}") from error
        raise Wrong(f"fit() raised {type(error).__name__}: {last_line(error)}") from error
    if results.num_errors:
        last = last_line(results.errors[0])
        if "ellipsis" in last.lower():
            raise NotAttempted
        raise Wrong(f"{results.num_errors} of {len(results)} trials failed, the first with {last}")
    return results
