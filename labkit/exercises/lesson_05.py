"""Lesson 05: start from scratch, count trials, rungs, drivers and workers, which tool."""

from types import SimpleNamespace
from typing import Any

from labkit.exercises.answers import Wrong, close_to, describe, number, result_of, returns
from labkit.exercises.registry import Lesson

LESSON = Lesson("05", "Tune sweeps")
_SITUATIONS = {
    "grid": "every pair must be there",
    "asha": "bad trials show early",
    "optuna": "few trials, one after the other, and each tells something",
    "pbt": "the learning rate changes on the way",
}


@LESSON.exercise(
    "05-1",
    "Start from scratch",
    "What does the previous trial leave in `self`? Go through all of it.",
    "An optimizer belongs to the weights that it was built for. What must be built first?",
    "`self.model = self.make_model()`, the optimizer for it, `self.epoch = 0`, `return True`.",
)
def _starts_from_scratch(reset_config: Any) -> None:
    """Called on a trial that has trained: everything of it must be gone."""
    old = {"model": "trained weights", "optimizer": "momentum of the old weights"}
    trial = SimpleNamespace(
        **old,
        epoch=9,
        make_model=lambda: "fresh weights",
        make_optimizer=lambda model, lr: ("optimizer", model, lr),
    )
    returned = result_of(reset_config, trial, {"lr": 0.25}, what="reset_config")
    if trial.model == old["model"]:
        raise Wrong("afterwards the model still has the weights of the trial before")
    if not isinstance(trial.optimizer, tuple):
        raise Wrong("afterwards the optimizer is still that of the trial before")
    _, of_model, lr = trial.optimizer
    if of_model != "fresh weights":
        raise Wrong("the optimizer moves the old model's weights: build the model first, then the optimizer")
    if lr != 0.25:
        raise Wrong(f"the new configuration says lr = 0.25, and the optimizer has {describe(lr)}")
    if trial.epoch != 0:
        raise Wrong(f"afterwards self.epoch is {describe(trial.epoch)}: a new trial has trained nothing yet")
    if returned is not True:
        raise Wrong(f"it returns {describe(returned)}: only True tells Tune that the process can be reused")


@LESSON.exercise(
    "05-2",
    "Count before you pay",
    "Which of the four entries says *every one of these*?",
    "Multiply the lengths of the grids. What does `num_samples` do with the result?",
    "2 optimizers × 4 widths, five times. Then divide by four for the minutes.",
)
def _count(trials: Any, minutes: Any) -> None:
    near = {
        8: "that is the grid once, and `num_samples=5` repeats all of it",
        5: "that is without a grid; each sample is a whole grid",
        30: "grids multiply: every optimizer meets every width",
        80: "the seed is one fixed value, and adds nothing",
        200: "`loguniform` draws one value for each trial; it multiplies nothing",
    }
    close_to(trials, 40, what="the number of trials", mistakes=near)
    near = {40: "one after the other; here four run at a time", 160: "four at a time is faster, not slower"}
    close_to(minutes, 10, what="the number of minutes", mistakes=near)


@LESSON.exercise(
    "05-3",
    "Rungs",
    "The first rung is the grace period.",
    "Each is 4 times as high as the one below, as long as it is below `max_t`.",
    "2, then 2 × 4, then 2 × 4 × 4. For the trials: 64, divided by 4 at each rung.",
)
def _rungs(rungs: Any, left: Any) -> None:
    if not isinstance(rungs, (list, tuple)):
        raise Wrong(f"the rungs are {describe(rungs)}, and a list is expected")
    found = [number(rung, "a rung") for rung in rungs]
    if found and found[0] != 2:
        raise Wrong(f"the first rung is {describe(found[0])}; before `grace_period` no trial is stopped")
    if found in ([2, 4, 8, 16, 32, 64], [2, 4, 8, 16, 32]):
        raise Wrong("each rung is `reduction_factor` times as high as the one before, and that is 4")
    if found == [2, 8, 32, 128]:
        raise Wrong("128 is beyond max_t: no trial gets there")
    if found == [2, 8, 32, 64]:
        raise Wrong("at 64, which is max_t, all trials end: none is compared there")
    if found != [2, 8, 32]:
        raise Wrong(f"the rungs are not {describe(found)}")
    near = {
        4: "that is how many pass the second rung; there is one more",
        16: "that is how many pass the first rung",
        64: "that is all of them",
        3: "that is the number of rungs",
    }
    close_to(left, 1, what="the number of trials that are left", mistakes=near)


@LESSON.exercise(
    "05-4",
    "Drivers and workers",
    "What does one trial use, all in all, at the same time?",
    "All of its workers, and its driver. How often does that fit into the CPUs?",
    "`cpus // (workers * cpus_per_worker + cpus_per_driver)`, as a whole number.",
)
def _at_once(trials_at_once: Any) -> None:
    # cpus, workers, cpus per worker, cpus per driver, the answer, a likely mistake and what to say to it
    for *args, expected, mistake, remark in (
        (8, 2, 1, 0.5, 3, 4, "the driver of each trial needs a part of a CPU, too"),
        (8, 3, 1, 1, 2, 1, "a trial uses its workers and its driver, and no more"),
        (12, 3, 1, 1, 3, 4, "the driver of each trial needs a CPU, too"),
        (14, 2, 2, 0.5, 3, 5, "each worker uses more than one CPU"),
        (2, 2, 1, 1, 0, 1, "with its driver it does not fit: not one could train"),
        (3, 2, 1, 0.5, 1, 3 / 2.5, "there are only whole trials"),
    ):
        near = {mistake: remark, args[0] / (args[1] * args[2] + args[3]): "there are only whole trials"}
        near.pop(expected, None)
        returns(trials_at_once, args, expected, name="trials_at_once", mistakes=near)


@LESSON.exercise(
    "05-5",
    "Which tool?",
    "Each of the four fits one situation. Which word of each situation gives it away?",
    "Every pair; shows early; each trial teaches the next; changes on the way.",
    "Only one of them tries all pairs, and only one changes a trial that already runs.",
)
def _tools(tools: Any) -> None:
    if not isinstance(tools, (list, tuple)) or len(tools) != len(_SITUATIONS):
        raise Wrong(f"your answer is {describe(tools)}, and a list of {len(_SITUATIONS)} is expected")
    for place, (tool, (right, why)) in enumerate(zip(tools, _SITUATIONS.items(), strict=True), start=1):
        if not isinstance(tool, str) or tool.lower() not in _SITUATIONS:
            raise Wrong(f"number {place} is {describe(tool)}; choose one of {', '.join(_SITUATIONS)}")
        if tool.lower() != right:
            raise Wrong(f"number {place} is not {tool!r}: think of what it is about ({why})")
