"""Lesson 01: tasks that run at the same time, CPUs of a node, an actor's memory, the token."""

from collections.abc import Sequence
from typing import Any

from labkit.exercises.answers import Wrong, close_to, describe, expect_type, same_array
from labkit.exercises.registry import Lesson

LESSON = Lesson("01", "A cluster on your machine")
_CPUS_OF_A_BIG_TASK = 3


@LESSON.exercise(
    "01-1",
    "Count in parallel",
    "`ray.get` waits. What happens if it is inside the loop that starts the tasks?",
    "`count.remote(labels_ref, 0, third)` is the first part. The last one ends at `len(train)`.",
    "Put three `count.remote(…)` into a list, without `ray.get`; then `sum(ray.get(parts))`.",
)
def _counted(parts: Any, total: Any, labels: Any) -> None:
    if not isinstance(parts, (list, tuple)):
        raise Wrong(f"`parts` is {describe(parts)}, and a list of three references is expected")
    for part in parts:
        if type(part).__name__ == "ndarray":
            raise Wrong("`parts` has results: you waited for each task before you started the next")
        expect_type(part, "ObjectRef", what="a part")
    if len(parts) != 3:
        raise Wrong(f"`parts` has {len(parts)} references")
    if len({part.hex() for part in parts}) < 3:
        raise Wrong("`parts` has the same reference more than once")
    expected = [int((labels == label).sum()) for label in range(10)]
    given = sum(total) if hasattr(total, "__len__") and len(total) == 10 else None
    if given is not None and given != len(labels):
        raise Wrong(f"the ten numbers of `total` add up to {given}, and there are {len(labels)} labels")
    same_array(total, expected, what="`total`")


@LESSON.exercise(
    "01-2",
    "Big tasks",
    "A task runs in one process, and a process runs on one node.",
    "Count for each node by itself: how many times do three CPUs fit into its CPUs?",
    "Round down on each node, then add: `sum(int(node.cpus // 3) for node in lab.nodes)`.",
)
def _at_once(answer: Any, nodes: Sequence[Any]) -> None:
    right = sum(int(node.cpus // _CPUS_OF_A_BIG_TASK) for node in nodes)
    cpus = sum(node.cpus for node in nodes)
    near = {
        cpus // _CPUS_OF_A_BIG_TASK: "that would be so if a task could use the CPUs of two nodes",
        len(nodes): "not every node has three CPUs",
    }
    near.pop(right, None)
    close_to(answer, right, mistakes=near)


@LESSON.exercise(
    "01-3",
    "What an actor remembers",
    "Where does the actor keep its count? What happens to that memory when the process is killed?",
    "A restarted actor is a new process with a new object of the class.",
    "Its `__init__` runs again and sets the count to 0. Then `add` is called once.",
)
def _after_restart(answer: Any) -> None:
    near = {
        6: "the count of 5 was in the memory of the process that was killed",
        5: "`add` adds before it returns",
        0: "`add` adds before it returns",
    }
    close_to(answer, 1, mistakes=near)


@LESSON.exercise(
    "01-4",
    "With the token",
    "`Request(address, headers={…})` makes a request with headers; `urlopen` accepts it.",
    'The token is the content of the file `os.environ["RAY_AUTH_TOKEN_PATH"]`: open and read it.',
    'The header: `{"Authorization": "Bearer " + token}`. The answer: `urlopen(request).status`.',
)
def _status(status: Any) -> None:
    if not isinstance(status, int) or isinstance(status, bool):
        # It may be the token or a request that contains it, so its value is not shown.
        raise Wrong(f"your answer is of type {type(status).__name__}; use the number `response.status`")
    near = {
        401: "refused, because the request had no token",
        403: "the request had a token, but not that of this cluster",
    }
    close_to(status, 200, mistakes=near, what="the status")
