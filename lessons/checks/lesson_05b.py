"""Lesson 05b: resume after a failure, a trainable class, a learning rate that changes, drivers and workers."""

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course.exercises import registry
from course.exercises.answers import (
    NotAttempted,
    Wrong,
    close_to,
    describe,
    expect_function,
    expect_type,
    is_blank,
    number,
    result_of,
    returns,
)
from course.exercises.registry import Lesson
from course.exercises.running import folder_of_check

if TYPE_CHECKING:
    from collections.abc import Callable

    from ray.tune import ResultGrid

LESSON = Lesson("05b", "Sweeps that survive")
_METHODS = ("setup", "reset_config", "step", "save_checkpoint", "load_checkpoint")


@LESSON.exercise(
    "05b-1 · Pick up the work",
    "What does the function have to know at its start, to go on after step 2? x is one third of it.",
    "Ask `tune.get_checkpoint()` before the loop. Save the velocity and the number of steps that are done, too, "
    "and begin the loop with it.",
    'Save `{"x": x, "velocity": velocity, "steps": step + 1}`. At the start: `with checkpoint.as_directory() as '
    'place:` read the file, then `for step in range(state["steps"], …)`. And `tune.FailureConfig(max_failures=1)`.',
    seconds=90,
    stuck="a loop that doesn't end, or a cluster without a free CPU",
)
def _picks_up(descend: Any, once_more: Any) -> None:
    """A trial of five steps that fails after its second report, and starts once more."""
    from ray import tune

    expect_function(descend, "descend")
    expect_type(once_more, "FailureConfig", what="once_more")
    close_to(once_more.max_failures, 1, what="max_failures", mistakes={
        0: "then a failed trial isn't started again",
        -1: "then a trial that always fails is started forever",
    })  # fmt: skip
    rate, steps = 0.1, 5
    with folder_of_check() as folder:
        log, used = Path(folder, "losses.txt"), Path(folder, "used.txt")
        log.touch()
        run = tune.RunConfig(storage_path=folder, failure_config=once_more)
        space = {"lr": {"grid_search": [rate]}, "steps": steps}
        options = tune.TuneConfig(metric="loss", mode="min")
        trainable = _failing_once(descend, str(log), str(used))
        run_tuner(tune.Tuner(trainable, param_space=space, tune_config=options, run_config=run), "descend")
        losses = [float(line) for line in log.read_text().split()]
        uses = [int(line) for line in used.read_text().split()]
    expected, slowed = _with_momentum(rate, steps), _with_momentum(rate, 3, forgets_after=2)
    if len(losses) < 3:
        raise Wrong(
            f"Tune hears of {len(losses)} of {steps} steps: report after each. "
            "If you report a metric `done`, Tune ends the trial: choose another name"
        )
    for done, loss in enumerate(losses[:2], start=1):
        close_to(loss, expected[done - 1], what=f"the loss after step {done}")
    if abs(losses[2] - expected[0]) < 1e-9:
        raise Wrong("after the failure it starts from scratch: x is 0 again, and steps run twice")
    near = {slowed[2]: "that is with a velocity of 0: x resumed, and the velocity didn't"}
    close_to(losses[2], expected[2], what="after the failure, the loss of the next step", mistakes=near)
    if len(losses) != steps:
        why = "the count of steps resumed, and is off by one"
        if abs(len(losses) - steps) > 1:
            why = "x resumed, and the count of steps didn't"
        raise Wrong(f"it makes {len(losses)} steps instead of {steps}: {why}")
    for done, loss in enumerate(losses, start=1):
        close_to(loss, expected[done - 1], what=f"with a failure after step 2, the loss after step {done}")
    if uses[-1] >= uses[0] * steps / 2:  # of the learning rate: for two steps, and again for all five
        raise Wrong("after the failure it computes the steps before it once more: load x from the checkpoint")


def _with_momentum(lr: float, steps: int, forgets_after: int = -1) -> list[float]:
    """The loss after each step; the velocity may be lost after one of them."""
    x = velocity = 0.0
    losses = []
    for step in range(steps):
        velocity = 0.5 * velocity * (step != forgets_after) - lr * 2 * (x - 3)
        x += velocity
        losses.append((x - 3) ** 2)
    return losses


class _Rate(float):
    """A learning rate that counts how often something is multiplied by it."""

    used = 0

    def __mul__(self, other: Any) -> Any:
        self.used += 1
        return float(self) * other

    __rmul__ = __mul__

    def __neg__(self) -> float:
        self.used += 1
        return -float(self)

    def __reduce__(self) -> tuple:
        return float, (float(self),)


def _failing_once(descend: "Callable", log: str, used: str) -> "Callable":
    """The trial, which notes each loss that is reported, and raises after the second.

    `used` gets a line for each attempt: how often it multiplied by the learning rate.
    """

    def trial(config: dict) -> None:
        from ray import tune

        report, rate = tune.report, _Rate(config["lr"])

        def noted(metrics: dict, **options: Any) -> None:
            if isinstance(place := options.get("checkpoint"), (str, Path)):
                raise TypeError(f"checkpoint={str(place)!r}: that is a path and not a tune.Checkpoint")
            with open(log, "a") as file:
                file.write(f"{float(metrics['loss'])!r}\n")
            report(metrics, **options)
            with open(log) as file:
                if len(file.readlines()) == 2:
                    raise OSError("the machine was taken away")

        tune.report = noted
        try:
            descend(config | {"lr": rate})
        finally:
            tune.report = report
            with open(used, "a") as file:
                file.write(f"{rate.used}\n")

    return trial


@LESSON.exercise(
    "05-2 · A trainable class of your own",
    "Which two values does the next step depend on? `setup` and `reset_config` set both of them.",
    "`save_checkpoint` writes `self.x` to a file in `place`, and `load_checkpoint` reads it from there.",
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
    _keeps_its_rate(cls, one)
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


def _keeps_its_rate(cls: type, saved: Any) -> None:
    """As population based training does: a trial loads the checkpoint of one with another learning rate."""
    other = _trial(cls, 0.25)
    with tempfile.TemporaryDirectory() as folder:
        result_of(saved.save_checkpoint, folder, what="save_checkpoint")
        result_of(other.load_checkpoint, folder, what="load_checkpoint")
    x = 3 - 3 * (1 - 2 * 0.1) ** 2
    found, what = _loss(other), "after load_checkpoint in a trial with lr=0.25 the loss"
    near = {_after(x, 0.1): "load_checkpoint brings back the saved trial's learning rate: load only x"}
    close_to(found, _after(x, 0.25), what=what, mistakes=near)


def _after(x: float, lr: float) -> float:
    """The loss after a step from x."""
    return ((x - 3) * (1 - 2 * lr)) ** 2


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
    "05b-2 · Make the change count",
    "What does `Digits.load_checkpoint` load besides the weights, and where is the learning rate in it?",
    "Call `super().load_checkpoint(place)` first. Which value has to be set afterwards?",
    'Afterwards: `for group in self.optimizer.param_groups: group["lr"] = self.config["lr"]`.',
    seconds=30,
    stuck="a method that doesn't return",
)
def _changed(cls: Any, train: Any, valid: Any) -> None:
    """Here, as Tune does it: another configuration, `reset_config`, then the checkpoint of another trial."""
    import torch

    if not isinstance(cls, type):
        raise Wrong(f"your answer is {describe(cls)}, and a class is expected")
    if is_blank(cls.load_checkpoint):
        raise NotAttempted
    one, other = (_started(cls, rate, train, valid) for rate in (0.1, 0.02))
    result_of(one.step, what="step")
    with tempfile.TemporaryDirectory() as place:
        one.save_checkpoint(place)
        other.config = {"lr": 0.05}
        other.reset_config(other.config)
        result_of(other.load_checkpoint, place, what="load_checkpoint")
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    if not all(torch.equal(a, b) for a, b in pairs):
        raise Wrong("after load_checkpoint, the model doesn't have the weights of the checkpoint")
    if not other.optimizer.state:
        raise Wrong("after load_checkpoint, the optimizer has no momentum: its state was not loaded")
    near = {
        0.1: "that is the copied trial's: the optimizer's state brought it back",
        0.02: "that is the configuration from before reset_config",
    }
    used = other.optimizer.param_groups[0]["lr"]
    close_to(used, 0.05, what="after load_checkpoint, the learning rate of the optimizer", mistakes=near)


def _started(cls: type, lr: float, train: Any, valid: Any) -> Any:
    trial = cls.__new__(cls)  # Trainable's own __init__ makes folders and log files
    trial.config = {"lr": lr}
    result_of(lambda: trial.setup(trial.config, train, valid), what="setup")
    return trial


@LESSON.exercise(
    "05-5 · Drivers and workers",
    "What does one trial use, all in all, at the same time? Count CPUs first, then GPUs.",
    "All of its workers, and its driver. How often does that fit into the CPUs, and how often into the GPUs?",
    "`int(cpus // (workers * worker_cpus + driver_cpus))`. And only if `worker_gpus` isn't 0, the smaller of that "
    "and `int(gpus // (workers * worker_gpus))`.",
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
        (8, 0, 2, 1, 1, 0.5, 0, 3, "each worker needs a GPU, and there is none"),
    ):
        cpus, _, workers, worker_cpus, _, driver_cpus = args
        exact = cpus / (workers * worker_cpus + driver_cpus)
        near = {mistake: remark, exact: "there are only whole trials"}
        returns(trials_at_once, args, expected, name="trials_at_once", mistakes=near)
    found = number(trials_at_once(8, 0, 2, 1, 0, 0.5))
    expect_type(found, "int", what="trials_at_once(8, 0, 2, 1, 0, 0.5)")


def run_tuner(tuner: Any, name: str) -> "ResultGrid":
    """As in lesson 05."""
    return registry.load("05").run_tuner(tuner, name)


def run_sweep(trainable: type, space: dict[str, Any], *, iterations: int, name: str) -> "ResultGrid":
    """Sweep a `tune.Trainable` in one process: each trial ends after `iterations` steps, with a checkpoint.

    Raises:
        Wrong: a trial fails; `name` is what the message calls the trainable.
    """
    from ray import tune

    with folder_of_check() as folder:
        run = tune.RunConfig(
            storage_path=folder,
            stop={"training_iteration": iterations},
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
        )
        one = tune.TuneConfig(reuse_actors=True, max_concurrent_trials=1)
        return run_tuner(tune.Tuner(trainable, param_space=space, tune_config=one, run_config=run), name)
