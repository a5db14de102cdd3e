"""Ids of Ray in forked processes: no two may draw the same ones.

Ray draws from generators of absl, which are not made for forks: what was drawn before a fork is shared, and
what comes after it is the same in all. Two tasks with one id end a worker ("Check failed: erased == 1").
In Ray's libraries each class that is decorated with ray.remote draws an id when its module is imported.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any


class _Ids:
    """Stands for Ray's `ActorClassID`: draws from the system, not from Ray's generator (`forks_are_alike`).

    That all forks have the same ids for the actor classes of a module does no harm: such an id says which
    class it is, and it is the same class.
    """

    def __init__(self, real: Any) -> None:
        self._real = real

    def from_random(self) -> Any:
        return self._real(os.urandom(self._real.size()))


@contextlib.contextmanager
def ids_of_the_system() -> Iterator[None]:
    """Let no class that is decorated with ray.remote draw an id from Ray, when its module is imported."""
    actor = sys.modules.get("ray.actor")
    real = getattr(actor, "ActorClassID", None)
    if real is None:  # not imported yet, or another Ray: `forks_are_alike` finds out what that means
        yield
        return
    actor.ActorClassID = _Ids(real)
    try:
        yield
    finally:
        actor.ActorClassID = real


def forks_are_alike() -> bool:
    """Whether two forked processes draw the same ids from Ray, in their first thread or in another.

    Forks two processes to see it.
    """
    if "ray" not in sys.modules:
        return False
    drawn = []
    for _ in range(2):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                os.write(writer, " ".join(_two_ids()).encode())
            os._exit(0)
        os.close(writer)
        with open(reader) as pipe:
            drawn.append(pipe.read().split())
        os.waitpid(pid, 0)
    one, other = drawn
    return len(one) != 2 or bool({*one} & {*other})


def _two_ids() -> list[str]:
    ray = sys.modules["ray"]
    ids = [ray.ObjectRef.from_random().hex()]
    thread = threading.Thread(target=lambda: ids.append(ray.ObjectRef.from_random().hex()))
    thread.start()
    thread.join()
    return ids
