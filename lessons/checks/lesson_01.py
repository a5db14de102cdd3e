"""Lesson 01: tasks that run at the same time, an actor's memory, CPUs of a node, an actor's restart."""

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course.exercises.answers import NotAttempted, Wrong, close_to, describe, result_of
from course.exercises.registry import Lesson
from course.exercises.running import learners_errors

LESSON = Lesson("01", "A cluster on your machine")
_PATIENCE = 8.0  # seconds for what a right answer does at once


@LESSON.exercise(
    "01-1 · First come, first served",
    "Submit all tasks first. In what order do they finish, and what does `ray.get` with a list do?",
    "Ask `ray.wait` for one reference that is ready, keep its result, and go on with the others.",
    "`while waiting:`, `ready, waiting = ray.wait(waiting)`, and `results.extend(ray.get(ready))`.",
    seconds=90,
    stuck="the list of references that wait never gets shorter, or a task waits for a CPU",
)
def _as_they_finish(as_they_finish: Any) -> None:
    """The function runs two tasks, and the first of them ends when the result of the second was taken.

    No clock decides about a right answer.
    """
    import ray

    board = ray.remote(num_cpus=0)(_Board).remote()

    @ray.remote
    def task(name: str) -> dict[str, Any]:
        return _one_of_two(board, name)

    submit = task.remote

    def remote(name: str) -> Any:
        reference = submit(name)
        board.note.remote(f"{name} was submitted")
        return reference

    task.remote = remote
    spans = result_of(as_they_finish, task, ["slow", "quick"], what="as_they_finish")
    found = spans if isinstance(spans, (list, tuple)) else [spans]
    if any(type(one).__name__ == "ObjectRef" for one in found):
        raise Wrong("as_they_finish returns references and not the results: get them with `ray.get`")
    if not isinstance(spans, list) or len(spans) != 2:
        raise Wrong(f"for two inputs it returns {describe(spans)}, and a list of two results is expected")
    if not all(isinstance(span, dict) and "pid" in span for span in spans):
        raise Wrong(f"the list has {describe(spans[0])} in it, and not what the task returned")
    if os.getpid() in (spans[0]["pid"], spans[1]["pid"]):
        raise Wrong("the tasks ran in this process: call `task.remote(…)`")
    if any(span["state"] == "stuck" for span in spans):
        raise Wrong("the second task got no CPU for a minute: end what holds them, and check again")
    if any(span["state"] == "alone" for span in spans):
        raise Wrong("the second task began when the first had ended: you waited before you submitted it")
    if [span["name"] for span in spans] != ["quick", "slow"]:
        raise Wrong(
            "the results are in the order of the inputs: take each one as soon as `ray.wait` returns it"
        )


@LESSON.exercise(
    "01-2 · Count together",
    "Where must the count be, so that there is only one of it?",
    "An attribute that `__init__` sets is in the memory of the actor's process. All calls use that one.",
    "`@ray.remote` above the class; `self.count = 0` in `__init__`, `self.count += number` in `add`.",
    seconds=60,
)
def _rows(rows: Any) -> None:
    """An actor with add and total, used by four tasks."""
    import ray

    counter = _actor(rows, "Rows", ("add", "total"))
    close_to(_answer(counter.total.remote(), "Rows.total()"), 0, what="before the first call of add, total()")
    add = ray.remote(_add_in_task)
    _answer([add.remote(counter, number) for number in (1, 10, 100, 1000)], "Rows.add(number)")
    total = _answer(counter.total.remote(), "Rows.total()")
    near = {1000: "the last number replaced the others", 4: "add the number, not 1"}
    close_to(total, 1111, what="after four tasks have added 1, 10, 100 and 1000, total()", mistakes=near)


@LESSON.exercise(
    "01-3 · What would change?",
    "A task runs in one process, and a process runs on one node.",
    "Count for each node separately: how many times do the CPUs of a task fit into its CPUs?",
    "With 2 CPUs for each task: one fits on a node with 3. Round down on each node, then add.",
)
def _at_once(at_once: Any, nodes: Sequence[Any]) -> None:
    if not isinstance(at_once, dict) or set(at_once) != {1, 2, 3}:
        raise Wrong(f"your answer is {describe(at_once)}, and a dict with the keys 1, 2 and 3 is expected")
    for size, answer in at_once.items():
        right = sum(int(node.cpus // size) for node in nodes)
        near = {
            sum(node.cpus for node in nodes) // size: "that would be so if a task could use two nodes",
            len(nodes): "not every node has so many CPUs",
        }
        close_to(answer, right, mistakes=near, what=f"the number of tasks with {size} CPUs each")


@LESSON.exercise(
    "01-4 · An actor that survives",
    "When the process starts again, `__init__` runs again. What can it find on the disk?",
    "`add` writes the new count to the file. `__init__` reads it, if the file exists.",
    "`Path(path).write_text(str(self.count))`, and `int(Path(path).read_text())` if it exists. "
    "`@ray.remote(max_restarts=1, max_task_retries=-1)`.",
    seconds=90,
    stuck="the actor does not come back",
)
def _saved(saved: Any) -> None:
    """An actor whose process is killed after five calls."""
    import ray

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "count"))
        actor = _actor(saved, "Saved", ("add",), path)
        counts = [_answer(actor.add.remote(), "Saved.add()") for _ in range(5)]
        if counts != [1, 2, 3, 4, 5]:
            raise Wrong(f"five calls of add() return {counts}, and 1 to 5 are expected")
        before = ray.get(actor.__ray_call__.remote(_process), timeout=30)
        ray.kill(actor, no_restart=False)
        try:
            while ray.get(actor.__ray_call__.remote(_process), timeout=30) == before:
                time.sleep(0.1)  # it is not dead yet, and would answer add, too
            after = ray.get(actor.add.remote(), timeout=30)
        except ray.exceptions.RayActorError:
            fix = "`max_restarts=1` starts the actor again, `max_task_retries=-1` repeats lost calls"
            raise Wrong(f"its process was killed, and the next call failed: {fix}") from None
        near = {1: "the count was in the memory of the process", 5: "the last call counts, too"}
        close_to(after, 6, what="after the restart, add()", mistakes=near)


def _process(actor: Any) -> int:
    return os.getpid()


class _Board:
    """An actor: what tasks and the check note, each of them can see."""

    def __init__(self) -> None:
        self.notes: set[str] = set()

    def note(self, what: str) -> None:
        self.notes.add(what)

    def has(self, *any_of: str) -> bool:
        return not self.notes.isdisjoint(any_of)


class _Taken:
    """A part of a result that notes, where `ray.get` makes the result, that it was taken."""

    def __init__(self, board: Any, name: str) -> None:
        self.board, self.name = board, name

    def __reduce__(self) -> tuple:
        return _note_taken, (self.board, self.name)


def _note_taken(board: Any, name: str) -> None:
    board.note.remote(f"{name} was taken")


def _one_of_two(board: Any, name: str) -> dict[str, Any]:
    """The task "slow", which waits for the other one, or "quick"."""
    state = "ended"
    if name == "quick":
        board.note.remote("quick has ended")
    elif not _comes(board, _PATIENCE, "quick was submitted", "quick has ended"):
        state = "alone"
    elif not _comes(board, 60, "quick has ended"):
        state = "stuck"
    else:
        _comes(board, _PATIENCE, "quick was taken")
    return {"name": name, "pid": os.getpid(), "state": state, "taken": _Taken(board, name)}


def _comes(board: Any, seconds: float, *any_of: str) -> bool:
    """Wait for one of some notes on the board; False if none comes in time."""
    import ray

    deadline = time.monotonic() + seconds
    while not ray.get(board.has.remote(*any_of)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _add_in_task(counter: Any, number: int) -> None:
    import ray

    ray.get(counter.add.remote(number))


def _actor(cls: Any, name: str, methods: Sequence[str], *args: Any) -> Any:
    """An actor of the learner's class.

    Raises:
        NotAttempted: the class has no method yet.
        Wrong: it is not a remote class, or lacks a method.
    """
    if isinstance(cls, type):
        if not any(callable(getattr(cls, method, None)) for method in methods):
            raise NotAttempted
        raise Wrong(f"{name} is a plain class; `@ray.remote` above it makes actors of it")
    if not hasattr(cls, "remote"):
        raise Wrong(f"{name} is {describe(cls)}, and a class with `@ray.remote` is expected")
    try:
        actor = cls.remote(*args)
    except TypeError as error:
        raise Wrong(f"{name}.remote({', '.join(map(describe, args))}) raised {error}") from None
    for method in methods:
        if not hasattr(actor, method):
            raise Wrong(f"{name} has no method `{method}`")
    return actor


def _answer(reference: Any, what: str) -> Any:
    """What an actor returns; what its code raises is a verdict."""
    import ray

    with learners_errors(what):
        try:
            return ray.get(reference, timeout=30)
        except ray.exceptions.GetTimeoutError:
            raise Wrong(f"{what} gives no answer: is there a free CPU for the actor?") from None
