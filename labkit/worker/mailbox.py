"""The way of events on a Ray cluster elsewhere: an actor keeps them until the kernel asks for them.

Workers need nothing but Ray: no port of the kernel, so it works through NAT, over IPv6 and ``ray://``, and
behind Ray's own token and TLS.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from labkit.worker.events import Event, decode

_KEPT = 4000  # messages, while the kernel does not ask; the oldest are dropped
_PAUSE = 0.2  # seconds between two requests of the kernel
_PATIENCE = 30.0  # seconds for the actor to take a message
_PROCESS = os.getpid()  # Ray cannot be used in a fork of it, such as a data loader's process


class Box(NamedTuple):
    """The actor's name, in the namespace of the job."""

    name: str

    @contextlib.contextmanager
    def connected(self) -> Iterator[Callable[[list[bytes]], Any]]:
        import ray

        def put(messages: list[bytes]) -> None:
            _require_connection()
            # Not `ray.get`, which warns in an async actor, such as the controller of Ray Train.
            actor.put.remote(messages).future().result(_PATIENCE)

        _require_connection()
        actor = ray.get_actor(self.name)
        yield put


def _require_connection() -> None:
    """Refuse to go on without a connection: any call of Ray would start a cluster."""
    import ray

    if os.getpid() != _PROCESS or not ray.is_initialized():
        raise OSError("this process has no connection to Ray")


class Mailbox:
    """Starts the actor, and passes each event to `on_event` in a thread of its own."""

    def __init__(self, on_event: Callable[[Event], None], name: str) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # Where this process is, since other nodes may be lost. With `soft` Ray may put it on one of those.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor = ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy=here)(_keeper())
        self.address = Box(name)
        self._actor = actor.options(name=name).remote()
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._read, args=[on_event], name="labkit-mailbox", daemon=True
        )
        self._thread.start()

    def close(self, seconds: float = 5.0) -> None:
        """Pass on what has arrived, within `seconds`, and end the actor; what is sent from now on is lost."""
        import ray

        self._over.set()
        try:
            self._thread.join(seconds)
        finally:
            with contextlib.suppress(Exception):  # of another cluster than this process has now
                if ray.is_initialized():
                    ray.kill(self._actor)  # which answers what the thread is waiting for
        self._thread.join(2.0)  # Ray must not be shut down while a thread is in one of its calls

    def _read(self, on_event: Callable[[Event], None]) -> None:
        import ray

        over = False
        while ray.is_initialized() and not over:
            over = self._over.wait(_PAUSE)  # then it asks a last time
            messages = []
            with contextlib.suppress(Exception):  # its process was killed, and starts again
                messages = ray.get(self._actor.take.remote())
            for message in messages:
                with contextlib.suppress(Exception):  # a damaged event
                    on_event(decode(message))


def _keeper() -> type:
    """Return the actor's class. Made in a function, it is pickled by value: its node needs no labkit."""
    kept = _KEPT

    class Keeper:
        def __init__(self) -> None:
            from collections import deque

            self._messages: deque[bytes] = deque(maxlen=kept)

        def put(self, messages: list[bytes]) -> None:
            self._messages.extend(messages)

        def take(self) -> list[bytes]:
            taken = list(self._messages)
            self._messages.clear()
            return taken

    return Keeper
