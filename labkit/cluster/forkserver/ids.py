"""Ids of Ray in forked processes: no two forks may draw the same ones.

Ray draws ids from generators of absl, which are not made for forks: if one was used before a fork, all forks
draw the same ids from it. Two tasks with one id end a worker ("Check failed: erased == 1"). Each class that
is decorated with ray.remote draws an id when its module is imported, also in Ray's own libraries.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace


@contextlib.contextmanager
def actor_ids_from_urandom() -> Iterator[None]:
    """During the block, no class that is decorated with ray.remote draws an id from Ray's generator.

    Its id comes from the system, and is the same in all forks, as the class is.
    """
    actor = sys.modules.get("ray.actor")
    real = getattr(actor, "ActorClassID", None)
    if real is None:  # not imported yet, or renamed: then `forks_draw_same_ids` notices
        yield
        return
    actor.ActorClassID = SimpleNamespace(from_random=lambda: real(os.urandom(real.size())))
    try:
        yield
    finally:
        actor.ActorClassID = real


def forks_draw_same_ids() -> bool:
    """Whether two forks would draw the same ids from Ray, in their main thread or in another one.

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
                os.write(writer, _two_ids().encode())
            os._exit(0)
        os.close(writer)
        with open(reader) as pipe:
            drawn.append(pipe.read().split())
        os.waitpid(pid, 0)
    one, other = drawn
    return len(one) != 2 or bool({*one} & {*other})


def _two_ids() -> str:
    from_random = sys.modules["ray"].ObjectRef.from_random
    with ThreadPoolExecutor(1) as thread:
        return f"{from_random().hex()} {thread.submit(from_random).result().hex()}"
