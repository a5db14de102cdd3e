"""Lesson 08: a complete checkpoint, a notice that hangs, a rank that is gone, how often to save."""

from typing import Any

from labkit.exercises.answers import Wrong, close_to, expect_function, expect_type, result_of
from labkit.exercises.registry import Lesson
from labkit.exercises.running import returned, run_loop

LESSON = Lesson("08", "When machines fail")
_STEPS, _FAILS_AFTER = 9, 5


@LESSON.exercise(
    "08-1 · What was forgotten",
    "Which objects of the loop change in a step? All of them belong into the checkpoint.",
    "`torch.optim.SGD` with a momentum remembers its last updates. And which step comes after step 5?",
    'Save `optimizer.state_dict()` as well and load it again; return `state["step"]` without the `+ 1`.',
    seconds=90,
    stuck="a rank waits for the others",
)
def _complete(save_state: Any, load_state: Any) -> None:
    """A training on two workers that fails once, against one that doesn't."""
    expect_function(save_state, "save_state")
    expect_function(load_state, "load_state")
    config, name = {"save": save_state, "load": load_state}, "the training with your functions"
    _, whole = returned(_loop, {**config, "fails": False}, name=name)
    first, weights = returned(_loop, {**config, "fails": True}, name=name, max_failures=1)
    near = {
        _FAILS_AFTER + 1: "that leaves out a step: `step` in the file is the number of the next one",
        0: "that starts from scratch, and there is a checkpoint",
    }
    what = f"after {_FAILS_AFTER} steps (0 to {_FAILS_AFTER - 1}), the first step"
    close_to(first, _FAILS_AFTER, what=what, mistakes=near)
    gap = max(abs(one - other) for one, other in zip(weights, whole, strict=True))
    if gap > 1e-5:
        likely = "the next step depends on something that is not in the checkpoint"
        raise Wrong(f"the weights differ by {gap:.2g} from those of an undisturbed run: {likely}")


@LESSON.exercise(
    "08-2 · A notice that hangs",
    "`get_preemption_info()` waits until all ranks have called it. Which of them call it here?",
    "After step 5, rank 1 returns False at once. It takes the next step, and waits for rank 0 in `backward`.",
    "Drop the first `if`: all ranks ask, and all get the same answer, so all of them save.",
    seconds=40,
    stuck="only one rank asks for the notice, which is a barrier, or only one gets True and saves",
)
def _all_ask(sees_notice: Any) -> None:
    """A loop on two workers that reports where the function returns True; a notice comes after step 7."""
    saved = returned(_is_told, {"sees": sees_notice}, name="the loop with your function")
    if not saved:
        raise Wrong("there was a notice, and no rank saved: ask ray.train.get_preemption_info()")
    if saved[0] <= 7:
        raise Wrong(f"it saves at step {saved[0]}, and the notice comes after step 7")


@LESSON.exercise(
    "08-3 · The rank that isn't there",
    "Which ranks does a run with two workers have, and which does a run with one?",
    "Ranks are counted from 0, and a run has at least one worker.",
    "`if rank == 0:` in place of `if rank == 3:`. All ranks call `report`, so it stays outside of the `if`.",
    seconds=60,
    stuck="a rank waits for the others: does each of them call `ray.train.report`?",
)
def _present(save_model: Any) -> None:
    """The function on one worker and on two; each time it has to leave a model."""
    for workers in (0, 2):
        config = {"save": save_model}
        _, reports = run_loop(_saves, config, num_workers=workers, name="the loop with your function")
        if not [checkpoint for _, checkpoint in reports if checkpoint is not None]:
            count = "one worker" if not workers else f"{workers} workers"
            raise Wrong(f"with {count}, no checkpoint is saved: which rank does that, and does it exist?")


@LESSON.exercise(
    "08-4 · Your interval",
    "The formula has two times, both in seconds. Which of the arguments are in other units?",
    "With 100 machines, one of them fails 100 times as often: `machine_hours * 3600 / machines` seconds.",
    "`round((2 * save_seconds * failure_every) ** 0.5 / step_seconds)`, and at least 1.",
)
def _interval(best_interval: Any) -> None:
    seconds = "divide by step_seconds"
    one = {10392: "that is for one machine", 2078: seconds, 17: "machine_hours is in hours"}
    for arguments, right, mistakes in (
        ((2.0, 60.0, 1000.0, 100), 1039, one),
        ((0.5, 10.0, 500.0, 1), 12000, {6000: seconds}),
        ((30.0, 0.01, 10.0, 1000), 1, {0: "there is at least one step between two checkpoints"}),
    ):
        what = f"best_interval{arguments}"
        found = result_of(best_interval, *arguments, what=what)
        close_to(found, right, abs=0.5, what=what, mistakes=mistakes)
        expect_type(found, "int", what=what)


def _saves(config: dict) -> None:
    import torch

    config["save"](torch.nn.Linear(4, 1), 1)


def _is_told(config: dict) -> list[int]:
    """The steps of 20 after which a rank saves."""
    import ray.train
    import torch

    saved, ask = [], ray.train.get_preemption_info
    ray.train.get_preemption_info = lambda: (ask(), object() if step > 7 else None)[1]  # still a barrier
    try:
        for step in range(1, 21):
            torch.distributed.all_reduce(torch.ones(1))
            if config["sees"](step):
                ray.train.report({"step": step})
                saved.append(step)
    finally:
        ray.train.get_preemption_info = ask
    return saved


def _loop(config: dict) -> tuple[int, list[float]]:
    """Some steps with the learner's functions; rank 0 saves after five, and both fail there once."""
    import tempfile

    import ray.train
    import torch
    from ray.train.torch import prepare_model

    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(4, 1))
    plain = getattr(model, "module", model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first, checkpoint = 0, ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            first = config["load"](plain, optimizer, folder)
    for step in range(first, _STEPS):
        rows = torch.rand(8, 4, generator=torch.Generator().manual_seed(2 * step + rank))
        loss = (model(rows) - rows.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if config["fails"] and checkpoint is None and step + 1 == _FAILS_AFTER:
            with tempfile.TemporaryDirectory() as folder:
                config["save"](plain, optimizer, step + 1, folder)
                saved = ray.train.Checkpoint.from_directory(folder) if rank == 0 else None
                ray.train.report({"step": step + 1}, checkpoint=saved)
            ray.train.get_all_reported_checkpoints()  # waits until Ray has taken in both reports
            raise OSError("the machine is gone")
    return first, torch.nn.utils.parameters_to_vector(plain.parameters()).tolist()
