"""Lesson 05: begin anew, count trials, rungs, drivers and workers, which tool."""

from types import SimpleNamespace
from typing import Any

from labkit.exercises.answers import Wrong, close_to, number, result_of, shown
from labkit.exercises.registry import Exercise, Lesson

_TOOLS = ("grid", "asha", "optuna", "pbt")
_SITUATIONS = (
    ("every pair must be there", "grid"),
    ("bad trials show early", "asha"),
    ("few trials, one after the other, and each tells something", "optuna"),
    ("the learning rate changes on the way", "pbt"),
)


def _begins_anew(reset_config: Any) -> None:
    """Called on a trial that has trained: everything of it must be gone."""
    old = {"model": "trained weights", "optimizer": "momentum of the old weights"}
    made = []

    def make_model() -> str:
        made.append("model")
        return "fresh weights"

    def make_optimizer(model: Any, lr: Any) -> tuple:
        return ("optimizer", model, lr)

    trial = SimpleNamespace(**old, epoch=9, make_model=make_model, make_optimizer=make_optimizer)
    returned = result_of(reset_config, trial, {"lr": 0.25}, what="reset_config")
    if trial.model == old["model"]:
        raise Wrong("afterwards the model still has the weights of the trial before")
    if trial.optimizer == old["optimizer"] or not isinstance(trial.optimizer, tuple):
        raise Wrong("afterwards the optimizer is still that of the trial before")
    _, of_model, lr = trial.optimizer
    if of_model != "fresh weights":
        raise Wrong("the optimizer moves the old model's weights: build the model first, then the optimizer")
    if lr != 0.25:
        raise Wrong(f"the new configuration says lr = 0.25, and the optimizer has {shown(lr)}")
    if trial.epoch != 0:
        raise Wrong(f"afterwards self.epoch is {shown(trial.epoch)}: a new trial has trained nothing yet")
    if returned is not True:
        raise Wrong(f"it returns {shown(returned)}: only True tells Tune that the process can be reused")


def _count(trials: Any, minutes: Any) -> None:
    close_to(
        trials,
        40,
        what="the number of trials",
        mistakes={
            8: "that is the grid once, and `num_samples=5` repeats all of it",
            5: "so many without a grid; each sample is a whole grid",
            30: "grids multiply: every optimizer meets every width",
            80: "the seed is one fixed value, and adds nothing",
            200: "`loguniform` draws one value for each trial; it multiplies nothing",
        },
    )
    mistakes = {
        40: "one after the other; here four run at a time",
        160: "four at a time is faster, not slower",
    }
    close_to(minutes, 10, what="the number of minutes", mistakes=mistakes)


def _rungs(rungs: Any, left: Any) -> None:
    if not isinstance(rungs, (list, tuple)):
        raise Wrong(f"the rungs are {shown(rungs)}, and a list is wanted")
    found = [number(rung, "a rung") for rung in rungs]
    if found and found[0] != 2:
        raise Wrong(f"the first rung is {shown(found[0])}; `grace_period` says how long nobody is stopped")
    if found == [2, 4, 8, 16, 32, 64] or found == [2, 4, 8, 16, 32]:
        raise Wrong("each rung is `reduction_factor` times as high as the one before, and that is 4")
    if found == [2, 8, 32, 128]:
        raise Wrong("128 is beyond max_t: no trial gets there")
    if found == [2, 8, 32, 64]:
        raise Wrong("at 64, which is max_t, all trials end: nobody is compared there")
    if found != [2, 8, 32]:
        raise Wrong(f"the rungs are not {shown(list(found))}")
    mistakes = {
        4: "so many pass the second rung; there is one more",
        16: "so many pass the first rung",
        64: "that is all of them",
        3: "that is the number of rungs",
    }
    close_to(left, 1, what="the number of trials that are left", mistakes=mistakes)


def _at_once(trials_at_once: Any) -> None:
    # (cpus, workers, cpus per worker, cpus per driver), the answer, a likely mistake
    for asked, expected, remark in (
        ((8, 2, 1, 0), 4, ""),
        ((8, 3, 1, 0), 2, "a trial that has not all of its workers does not train"),
        ((8, 3, 1, 1), 2, "a trial takes its workers and its driver"),
        ((12, 3, 1, 1), 3, "the driver of each trial needs a CPU, too"),
        ((12, 2, 2, 0), 3, "each worker takes more than one CPU"),
        ((2, 2, 1, 1), 0, "with its driver it has no room: not one could train"),
        ((3, 2, 1, 0.5), 1, "a driver may take a part of a CPU"),
    ):
        what = "trials_at_once({:g}, {:g}, {:g}, {:g})".format(*asked)
        answer = number(result_of(trials_at_once, *asked, what="trials_at_once"), what)
        if answer != int(answer):
            raise Wrong(f"{what} is {shown(answer)}, and there are only whole trials")
        if answer != expected:
            raise Wrong(f"{what} is {shown(answer)}" + (f": {remark}" if remark else ", and that is not it"))


def _tools(tools: Any) -> None:
    if not isinstance(tools, (list, tuple)) or len(tools) != len(_SITUATIONS):
        raise Wrong(f"your answer is {shown(tools)}, and a list of {len(_SITUATIONS)} is wanted")
    for place, (tool, (why, right)) in enumerate(zip(tools, _SITUATIONS, strict=True), start=1):
        if not isinstance(tool, str) or tool.lower() not in _TOOLS:
            raise Wrong(f"number {place} is {shown(tool)}; choose one of {', '.join(_TOOLS)}")
        if tool.lower() != right:
            raise Wrong(f"number {place} is not {tool!r}: think of what it is about ({why})")


LESSON = Lesson(
    "05",
    "Tune sweeps",
    (
        Exercise(
            id="05-1",
            title="Begin anew",
            hints=(
                "What does the trial before leave behind in `self`? Go through all of it.",
                "An optimizer belongs to the weights that it was built for. What must be built first?",
                "`self.model = self.make_model()`, the optimizer for it, `self.epoch = 0`, `return True`.",
            ),
            check=_begins_anew,
        ),
        Exercise(
            id="05-2",
            title="Count before you pay",
            hints=(
                "Which of the four entries says *every one of these*?",
                "Multiply the lengths of the grids. What does `num_samples` do with the result?",
                "2 optimizers × 4 widths, five times. Then divide by four for the minutes.",
            ),
            check=_count,
        ),
        Exercise(
            id="05-3",
            title="Rungs",
            hints=(
                "The first rung is the grace period.",
                "Each is 4 times as high as the one below, as long as it is below `max_t`.",
                "2, then 2 × 4, then 2 × 4 × 4. For the trials: 64, divided by 4 at each rung.",
            ),
            check=_rungs,
        ),
        Exercise(
            id="05-4",
            title="Drivers and workers",
            hints=(
                "What does one trial take, all in all, at the same time?",
                "All of its workers, and its driver. How often does that fit into the CPUs?",
                "`cpus // (workers * cpus_per_worker + cpus_per_driver)`, as a whole number.",
            ),
            check=_at_once,
        ),
        Exercise(
            id="05-5",
            title="Which tool?",
            hints=(
                "Each of the four fits one situation. Which word of each situation gives it away?",
                "Every pair; shows early; each trial teaches the next; changes on the way.",
                "Only one of them tries all pairs, and only one changes a trial that already runs.",
            ),
            check=_tools,
        ),
    ),
)
