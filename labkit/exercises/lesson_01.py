"""Lesson 01: tasks that run at the same time, tickets per node, an actor's memory, the token."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from labkit.exercises.answers import Wrong, close_to, of_type, same_array, shown
from labkit.exercises.registry import Exercise, Lesson

_CPUS_OF_A_BIG_TASK = 3


def _counted(parts: Any, total: Any, labels: Any) -> None:
    if not isinstance(parts, (list, tuple)):
        raise Wrong(f"`parts` is {shown(parts)}, and a list of three references is wanted")
    for part in parts:
        if type(part).__name__ == "ndarray":
            raise Wrong("`parts` holds results: each task was waited for before the next was started")
        of_type(part, "ObjectRef", what="a part")
    if len(parts) != 3:
        raise Wrong(f"`parts` holds {len(parts)} references")
    if max(Counter(part.hex() for part in parts).values()) > 1:
        raise Wrong("`parts` holds the same reference more than once")
    wanted = [int((labels == label).sum()) for label in range(10)]
    given = sum(total) if hasattr(total, "__len__") and len(total) == 10 else None
    if given is not None and given != len(labels):
        raise Wrong(f"the ten numbers of `total` add up to {given}, and there are {len(labels)} labels")
    same_array(total, wanted, what="`total`")


def _at_once(answer: Any, nodes: Sequence[Any]) -> None:
    right = sum(int(node.cpus // _CPUS_OF_A_BIG_TASK) for node in nodes)
    cpus = sum(node.cpus for node in nodes)
    near = {
        cpus // _CPUS_OF_A_BIG_TASK: "so many only if a task could take its CPUs from two nodes",
        len(nodes): "not every node has three CPUs",
    }
    near.pop(right, None)
    close_to(answer, right, mistakes=near)


def _after_restart(answer: Any) -> None:
    near = {
        6: "that would need somebody who remembers the 5, and its process was killed",
        5: "`add` adds before it returns",
        0: "`add` adds before it returns",
    }
    close_to(answer, 1, mistakes=near)


def _status(status: Any) -> None:
    if not isinstance(status, int) or isinstance(status, bool):
        # It may be the token or a request that carries it: say nothing of what it holds.
        raise Wrong(f"your answer is of type {type(status).__name__}; take the number `response.status`")
    near = {
        401: "refused, since no token came with the request",
        403: "a token came, and it is not this cluster's",
    }
    close_to(status, 200, mistakes=near, what="the status")


LESSON = Lesson(
    "01",
    "A cluster on your machine",
    (
        Exercise(
            id="01-1",
            title="Count in parallel",
            hints=(
                "`ray.get` waits. What happens if it stands inside the loop that starts the tasks?",
                "`count.remote(labels_ref, 0, third)` is the first part. The last one ends at `len(train)`.",
                "Put three `count.remote(…)` into a list, without `ray.get`; then `sum(ray.get(parts))`.",
            ),
            check=_counted,
        ),
        Exercise(
            id="01-2",
            title="Big tasks",
            hints=(
                "A task runs in one process, and a process runs on one node.",
                "Count for each node by itself: how many times do three CPUs fit into its CPUs?",
                "Round down on each node, then add: `sum(int(node.cpus // 3) for node in lab.nodes)`.",
            ),
            check=_at_once,
        ),
        Exercise(
            id="01-3",
            title="What an actor remembers",
            hints=(
                "Where does the actor keep its count? What becomes of that place when the process is killed?",
                "Starting again means: a new process, a new object of the class.",
                "Its `__init__` runs again and sets the count to 0. Then `add` is called once.",
            ),
            check=_after_restart,
        ),
        Exercise(
            id="01-4",
            title="With the token",
            hints=(
                "`Request(address, headers={…})` makes a request with headers; `urlopen` takes it.",
                'The token is what the file at `os.environ["RAY_AUTH_TOKEN_PATH"]` holds: open and read it.',
                'The header: `{"Authorization": "Bearer " + token}`. The answer: `urlopen(request).status`.',
            ),
            check=_status,
        ),
    ),
)
