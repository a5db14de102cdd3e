"""Lesson 03b: a run that hangs, and resuming."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from zlib import crc32

from course.exercises.answers import Wrong, close_to, describe, expect_function, require_no_dots
from course.exercises.registry import Lesson
from course.exercises.running import returned, run_loop

LESSON = Lesson("03b", "Checkpoints, hangs, restarts")
# What torch says of a likely mistake, and what to say of it instead.
_REMARKS = {
    "no attribute 'module'": "with one worker there is no wrapper, so the model has no `.module`",
    '"module.': "`model` is the wrapper; load into the model inside it",
    "'NoneType' object has no attribute": "a new run has no checkpoint: `get_checkpoint()` returns None",
    "Timed out waiting": "one rank leaves the loop, and the other waits for its gradients",
    "group has not been initialized": "with `num_workers=0` there is no process group, so a call such "
    "as `all_reduce` raises: ask `get_world_size()` first, or do without it",
}


@LESSON.exercise(
    "03-2 · Stop together",
    "Rank 0 decides alone, and rank 1 never hears of it. Is there something that both could decide by?",
    "After each step all ranks have the same weights. What would each decide by the model's accuracy?",
    "Let every rank test the model: `if accuracy(model) > 0.8: return epoch + 1`, without `rank == 0`.",
    seconds=90,
    stuck="one rank leaves the loop, and the other waits for its gradients",
)
def _together(train_together: Any) -> None:
    """A loop that returns the number of its epochs: it stops before the tenth, on both ranks.

    At last, rank 1 knows nothing of its own rows. Ranks that judge by different rows then disagree.
    """
    require_no_dots(train_together)
    expect_function(train_together, "train_together")
    options = {"name": "train_together", "trainer": _impatient_trainer()}
    idle, trained, epochs, seen = _returned(_idle_and_trained, {"loop": train_together}, **options)
    for found in (idle, trained):
        if not isinstance(found, int):
            raise Wrong(f"the loop returns {describe(found)}; the number of its epochs is expected")
    if idle == 9:
        raise Wrong(
            "with a model that learns nothing it returns 9, and 10 epochs are expected: "
            "does it stop early, or does it return the number of the last epoch, counted from 0?"
        )
    if idle != 10:
        raise Wrong(f"it stops after {idle} epochs of a model that learns nothing: what does it look at?")
    if epochs >= 10:
        raise Wrong("it doesn't hang, but it trains all 10 epochs: stop early")
    if trained != epochs:
        raise Wrong(f"it trains {epochs:g} epochs and returns {trained}: return the number of epochs trained")
    try:
        _returned(_with_worse_rows, {"loop": train_together, "seen": seen}, **options)
    except Wrong:
        raise Wrong(
            "each rank judges the model by other rows, and nothing makes them agree: "
            "that they stopped together was luck"
        ) from None
    run_loop(train_together, {}, name="train_together", remarks=_REMARKS)  # any number of workers: here none


@LESSON.exercise(
    "03-3 · Resume with a schedule",
    "`ray.train.get_checkpoint()` is None in a new run. Otherwise it has the file state.pt.",
    "`my_loop.py` has such a function. What has to be loaded besides model and optimizer?",
    'Load `state["model"]` into `getattr(model, "module", model)`, `state["optimizer"]` into the optimizer, '
    '`state["scheduler"]` into the scheduler, and return `state["epoch"] + 1`.',
    seconds=90,
)
def _resumed(resume: Any, store: Any = None) -> None:
    """A run on two workers that fails after two epochs, and goes on with the learner's function."""
    require_no_dots(resume)
    expect_function(resume, "resume")
    config, name = {"resume": resume}, "resume"
    result, _ = run_loop(_first_of_a_new_run, config, name=name, remarks=_REMARKS)
    near = {1: "epochs are counted from 0"}
    close_to(result.return_value, 0, what="without a checkpoint, the first epoch", mistakes=near)
    options = {"num_workers": 2, "max_failures": 1, "store": store, "name": name, "remarks": _REMARKS}
    result, _ = run_loop(_fails_once, config, **options)
    found = result.return_value
    near = {
        0: "that starts from scratch, and there is a checkpoint",
        1: "that epoch is finished, and would be trained twice",
    }
    close_to(found["first"], 2, what="after epochs 0 and 1, the first epoch", mistakes=near)
    if found["weight"] != 1.0:
        raise Wrong("the model does not have the weights of the checkpoint")
    if not found["momentum"]:
        raise Wrong("the optimizer's state was not loaded: its momentum is lost")
    if found["schedule"] != 2:
        raise Wrong("the scheduler's state was not loaded: the learning rate starts from the top again")


def _returned(*args: Any, **options: Any) -> Any:
    return returned(*args, remarks=_REMARKS, **options)


def _impatient_trainer() -> Callable:
    """A TorchTrainer whose ranks wait for each other for 20 seconds, and not for half an hour."""
    from ray.train.torch import TorchConfig, TorchTrainer

    return partial(TorchTrainer, torch_config=TorchConfig(timeout_s=20))


def _idle_and_trained(config: dict) -> tuple[Any, Any, float, set[int]]:
    """What the loop returns if no optimizer changes a weight; and what if they do, unless that was not 10.

    Then also how many epochs the second case had, by its optimizer's steps, and the rows that the models of
    this rank have seen in it.
    """
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    steps = 0

    def count(optimizer: Any, *_: Any) -> None:
        nonlocal steps
        steps += 1
        if is_idle:
            optimizer.zero_grad()

    hook, is_idle, seen = register_optimizer_step_pre_hook(count), True, set()
    try:
        idle = config["loop"]({})
        if idle != 10:  # a rank that left early would disturb the others
            return idle, 0, 0.0, seen
        steps_of_10, steps, is_idle = steps, 0, False
        with _outputs(lambda rows, output: seen.update(rows)):
            trained = config["loop"]({})
        return idle, trained, 10 * steps / max(steps_of_10, 1), seen
    finally:
        hook.remove()


def _with_worse_rows(config: dict) -> Any:
    """The loop, but the models of rank 1 know nothing of a row that rank 0 didn't see in the run before."""
    import ray.train
    import torch

    def worse(rows: list[int], output: Any) -> Any:
        known = [row in config["seen"] for row in rows]
        return output * torch.tensor(known, device=output.device).view(-1, *[1] * (output.dim() - 1))

    if ray.train.get_context().get_world_rank() == 0:
        return config["loop"]({})
    with _outputs(worse):
        return config["loop"]({})


@contextlib.contextmanager
def _outputs(change: Callable) -> Iterator[None]:
    """Call change(checksums of the input's rows, output) after each call of a model, but not of its parts."""
    from torch.nn.modules import module

    depth = 0

    def enter(*_: Any) -> None:
        nonlocal depth
        depth += 1

    def leave(_: Any, inputs: tuple, output: Any) -> Any:
        nonlocal depth
        depth -= 1
        if depth == 0 and inputs:
            return change([crc32(row.numpy().tobytes()) for row in inputs[0].detach().cpu()], output)
        return None

    hooks = module.register_module_forward_pre_hook(enter), module.register_module_forward_hook(leave)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _prepared() -> tuple[Any, Any, Any]:
    import torch
    from ray.train.torch import prepare_model

    model = prepare_model(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)


def _save(epoch: int, model: Any, optimizer: Any, scheduler: Any) -> None:
    import ray.train
    import torch

    with tempfile.TemporaryDirectory() as folder:
        plain = getattr(model, "module", model)
        state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"scheduler": scheduler.state_dict(), "epoch": epoch}, f"{folder}/state.pt")
        rank = ray.train.get_context().get_world_rank()
        checkpoint = None if rank else ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"epoch": epoch}, checkpoint=checkpoint)


def _first_of_a_new_run(config: dict) -> Any:
    """In one process: the first epoch; and with a checkpoint, `resume` must not raise."""
    objects = _prepared()
    first = config["resume"](*objects)
    _save(0, *objects)
    config["resume"](*objects)
    return first


def _fails_once(config: dict) -> dict[str, Any] | None:
    """Save two epochs and fail; in the second attempt, return what `resume` came to."""
    import ray.train
    import torch

    model, optimizer, scheduler = _prepared()
    first, plain = config["resume"](model, optimizer, scheduler), getattr(model, "module", model)
    if ray.train.get_checkpoint() is not None:
        return {
            "first": first,
            "weight": plain.weight[0, 0].item(),
            "momentum": bool(optimizer.state),
            "schedule": scheduler.last_epoch,
        }
    for epoch in (0, 1):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        scheduler.step()
        torch.nn.init.constant_(plain.weight, epoch)
        _save(epoch, model, optimizer, scheduler)
    ray.train.get_all_reported_checkpoints()  # waits until Ray has taken in both reports
    raise OSError("the disk is full")
