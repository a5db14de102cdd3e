"""Lesson 08: a complete checkpoint, a save that hangs, a rank that is gone, how often to save."""

import itertools
from pathlib import Path
from typing import Any

from course.exercises.answers import Wrong, close_to, expect_function, expect_type, list_is, number, result_of
from course.exercises.registry import Lesson
from course.exercises.running import returned, run_loop
from labkit.worker.calls import reports_to

LESSON = Lesson("08", "When machines fail")
_STEPS, _FAILS_AFTER = 9, 5
_NOTHING = "'NoneType'"  # in what Python says if a function returns nothing, and its result is used
_LOSSES = ((0.9, 0.8), (0.4, 0.8), (0.2, 0.7), (0.1, 0.3))  # of rank 0 and rank 1, in each step


@LESSON.exercise(
    "08-1 · Resume to the same weights",
    "Which objects of the loop change in a step? And what else does a step depend on, if it has dropout?",
    "Save and load three `state_dict()`s and the step. For the random numbers do what `batches` does for the rows: "
    "compute them from the step.",
    '`optimizer.load_state_dict(state["optimizer"])`, the same for model and scheduler; `return state["step"]`; '
    "`torch.manual_seed(100_000 * step + rank)`.",
    seconds=90,
    stuck="a rank waits for the others",
)
def _complete(save_state: Any, load_state: Any, before_step: Any) -> None:
    """A run on two workers that fails once and resumes, against one that doesn't fail."""
    config = {"save": save_state, "load": load_state, "before": before_step}
    for name, function in config.items():
        expect_function(function, f"{name}_step" if name == "before" else f"{name}_state")
    name = "the loop with your functions"
    near = {_NOTHING: "load_state returns nothing, and the number of steps that are done is expected"}
    whole, resumed = returned(_fails_and_resumes, config, name=name, max_failures=1, remarks=near)
    _random_numbers(whole["draws"])
    _all_seeds(before_step)
    near = {
        _FAILS_AFTER + 1: "that leaves out a step: `step` is the number of steps that are done",
        0: "that starts from scratch, and there is a checkpoint",
    }
    what = f"after {_FAILS_AFTER} steps (0 to {_FAILS_AFTER - 1}), the first step"
    close_to(resumed["first"], _FAILS_AFTER, what=what, mistakes=near)
    if not resumed["momentum"]:
        raise Wrong("after load_state, the optimizer has no momentum: its state was not loaded")
    for found, wanted in zip(resumed["rates"], whole["rates"][_FAILS_AFTER:], strict=True):
        if found != wanted:
            rates = f"{found:.3g} instead of {wanted:.3g}"
            raise Wrong(f"after the restart, a step's learning rate is {rates}: the schedule starts again")
    if resumed["draws"] != whole["draws"][_FAILS_AFTER:]:
        raise Wrong(
            "the random numbers of a step differ after the restart: they depend on more than the step"
        )
    gap = max(abs(one - other) for one, other in zip(resumed["weights"], whole["weights"], strict=True))
    if gap > 1e-5:
        raise Wrong(f"the weights differ by {gap:.2g} from those of an undisturbed run: were they loaded?")


def _random_numbers(draws: list[list[float]]) -> None:
    """What each rank draws in each step, after `before_step`."""
    if any(one == other for one, other in draws):
        raise Wrong("both ranks draw the same random numbers, so they drop the same units: use the rank")
    if len({rank[0] for rank in draws}) < len(draws):
        raise Wrong("several steps draw the same random numbers: use the step")
    first = {one: step for step, (one, _) in enumerate(draws)}
    for step, (_, other) in enumerate(draws):
        if other in first:
            raise Wrong(
                f"step {first[other]} on rank 0 draws the numbers of step {step} on rank 1: "
                "no two seeds may be equal"
            )


def _all_seeds(before_step: Any) -> None:
    """What 16 ranks draw in 40 steps, in this process: two ranks and nine steps show few collisions."""
    import torch

    drawn: dict[tuple, tuple[int, int]] = {}
    with torch.random.fork_rng(devices=[]):
        for step, rank in itertools.product(range(40), range(16)):
            result_of(before_step, step, rank, what=f"before_step({step}, {rank})")
            other = drawn.setdefault(tuple(torch.rand(4).tolist()), (step, rank))
            if other != (step, rank):
                raise Wrong(
                    f"step {step} on rank {rank} draws the numbers of step {other[0]} on rank {other[1]}: "
                    "no two seeds may be equal, also with more ranks than two"
                )


@LESSON.exercise(
    "08-2 · A save that hangs",
    "Each rank asks about a loss of its own. What does each of them do next, if the answers differ?",
    "All ranks need the same number. Which operation gives each of them the sum over all ranks?",
    "`total = torch.tensor(loss)`; `dist.all_reduce(total)`; `total.item() / dist.get_world_size() < 0.5`.",
    seconds=40,
    stuck="one rank saves and the other takes the next step, because each asks about its own loss",
)
def _agree(good_enough: Any) -> None:
    """A loop on two workers, whose losses differ, that reports where the function returns True."""
    config, name = {"good_enough": good_enough}, "the loop with your function"
    near = {
        _NOTHING: "`all_reduce` changes the tensor in place and returns nothing: use the tensor afterwards"
    }
    saved = returned(_saves_if, config, name=name, remarks=near)
    near = {
        (): "the mean is below 0.5 in steps 3 and 4",
        (2, 3, 4): "in step 2 only rank 0 is below 0.5, and the mean isn't",
        (4,): "in step 3 the mean is below 0.5 already: is that the sum, the largest loss, or a vote?",
    }
    list_is(saved, [3, 4], what="the list of steps that save", mistakes=near)
    if run_loop(_saves_alone, config, name=name)[0].return_value:
        raise Wrong(
            "with one worker and a loss of 0.8 it returns True: divide by the number of ranks, not by 2"
        )


@LESSON.exercise(
    "08-3 · The rank that isn't there",
    "Which ranks does a run with two workers have? And what does `prepare_model` return with one, with two?",
    "A run has at least rank 0. With several workers, the model is in a wrapper, as its `.module`.",
    '`if rank == 0:`, and `getattr(model, "module", model).state_dict()`. All ranks still call `report`.',
    seconds=60,
    stuck="a rank waits for the others: does each of them call `ray.train.report`?",
)
def _present(save_model: Any) -> None:
    """The function on one worker and on two; each time it has to leave a model without the wrapper."""
    import torch

    for workers, count in ((0, "one worker"), (2, "two workers")):
        config = {"save": save_model}
        result, reports = run_loop(_saves, config, num_workers=workers, name="the loop with your function")
        kept = [checkpoint for _, checkpoint in reports if checkpoint is not None]
        if not kept:
            raise Wrong(f"with {count}, no checkpoint is saved: which rank does that, and does it exist?")
        with kept[-1].as_directory() as folder:
            if not (file := Path(folder, "model.pt")).is_file():
                raise Wrong(f"with {count}, there is no model.pt in the checkpoint")
            names = list(torch.load(file, weights_only=True))
        if names != ["weight", "bias"]:
            raise Wrong(f"with {count}, model.pt has {', '.join(names)}: save the model inside the wrapper")
        if result.return_value > 1:
            raise Wrong(f"with {count}, every rank writes the same file: one of them is enough")


@LESSON.exercise(
    "08-4 · Your interval",
    "The formula has two times, both in seconds. Which of the arguments are in other units?",
    "With 100 machines, one of them fails 100 times as often: `machine_hours * 3600 / machines` seconds.",
    "`round((2 * save_seconds * failure_every) ** 0.5 / step_seconds)`, and at least 1.",
)
def _interval(best_interval: Any) -> None:
    seconds = "divide by step_seconds"
    one = {
        1040: "that is rounded up, and not to the nearest whole number",
        10392: "that is for one machine",
        103923: "with more machines, failures come more often: divide by their number",
        735: "under the root there is a factor of 2",
        2078: seconds,
        17: "machine_hours is in hours",
    }
    for arguments, right, mistakes in (
        ((2.0, 60.0, 1000.0, 100), 1039, one),
        ((0.5, 10.0, 500.0, 1), 12000, {6000: seconds}),
        ((3.0, 20.0, 100.0, 5), 566, {565: "that is cut off, and not rounded"}),
        ((30.0, 0.01, 10.0, 1000), 1, {0: "there is at least one step between two checkpoints"}),
    ):
        what = f"best_interval{arguments}"
        found = number(result_of(best_interval, *arguments, what=what), what)
        close_to(found, right, abs=0.5, what=what, mistakes=mistakes)
        expect_type(found, "int", what=what)


def _saves(config: dict) -> int:
    """How many ranks report a checkpoint. Each is the first one of its machine, as on a cluster."""
    from unittest import mock

    import ray.train
    import torch
    from ray.train.torch import prepare_model

    report, saved = ray.train.report, torch.zeros(1)

    def noted(metrics: dict, checkpoint: Any = None, **options: Any) -> None:
        saved.add_(checkpoint is not None)
        report(metrics, checkpoint=checkpoint, **options)

    model = prepare_model(torch.nn.Linear(4, 1))
    alone = mock.patch.object(type(ray.train.get_context()), "get_local_rank", return_value=0)
    with alone, reports_to(config["save"], noted):
        config["save"](model, 1)
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(saved)
    return int(saved)


def _saves_alone(config: dict) -> bool:
    """What a run with one worker decides, in this process: its process group has one rank."""
    import torch.distributed as dist

    if is_new := not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return bool(config["good_enough"](0.8))
    finally:
        if is_new:
            dist.destroy_process_group()


def _saves_if(config: dict) -> list[int]:
    """The steps, from 1 on, after which rank 0 saves."""
    import ray.train
    import torch

    saved, rank = [], ray.train.get_context().get_world_rank()
    for step, losses in enumerate(_LOSSES, start=1):
        torch.distributed.all_reduce(torch.ones(1))  # as `backward` does
        if config["good_enough"](losses[rank]):
            ray.train.report({"step": step})
            saved.append(step)
    return saved


def _fails_and_resumes(config: dict) -> tuple[dict, dict]:
    """An undisturbed run, and what a run that failed in the middle does after its restart."""
    import tempfile

    import ray.train

    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        whole = _steps(config)
        with checkpoint.as_directory() as folder:
            return whole, _steps(config, resume=folder)
    with tempfile.TemporaryDirectory() as folder:
        _steps(config, save=folder)
        saved = ray.train.Checkpoint.from_directory(folder)
        is_first = ray.train.get_context().get_world_rank() == 0
        ray.train.report({}, checkpoint=saved if is_first else None)
    ray.train.get_all_reported_checkpoints()  # waits until Ray has taken in both reports
    raise OSError("the machine is gone")


def _steps(config: dict, *, resume: str = "", save: str = "") -> dict[str, Any]:
    """Train with the learner's functions: from the state in `resume` on; to a state in `save`, or to the end."""
    import ray.train
    import torch
    from ray.train.torch import prepare_model
    from torch.optim.lr_scheduler import LambdaLR

    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1)]
    plain = torch.nn.Sequential(*layers)
    model = prepare_model(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = LambdaLR(optimizer, lambda step: 0.9**step)
    first = config["load"](plain, optimizer, scheduler, resume) if resume else 0
    momentum, rates, draws = bool(optimizer.state), [], []
    torch.seed()  # as in a new process, which begins with other random numbers
    for step in range(first, _FAILS_AFTER if save else _STEPS):
        config["before"](step, rank)
        drawn = [0.0, 0.0]
        torch.distributed.all_gather_object(drawn, torch.rand(1).item())
        draws.append(drawn)
        rates.append(optimizer.param_groups[0]["lr"])
        rows = torch.rand(8, 4, generator=torch.Generator().manual_seed(2 * step + rank))
        loss = (model(rows) - rows.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    if save:
        config["save"](plain, optimizer, scheduler, _FAILS_AFTER, save)
    weights = torch.nn.utils.parameters_to_vector(plain.parameters()).tolist()
    return {"first": first, "momentum": momentum, "rates": rates, "draws": draws, "weights": weights}
