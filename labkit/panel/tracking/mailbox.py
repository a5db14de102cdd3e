"""The way of events in a run of Ray: an actor keeps them until the kernel asks for them.

Workers need nothing but Ray: no port of the kernel, so it works through NAT, over IPv6 and ``ray://``, and
behind Ray's own token and TLS.
"""

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_KEPT = 4000  # messages, while the kernel does not ask; the oldest are dropped
_WAIT = 2.0  # seconds that the actor waits for a message before it answers that there is none
_PAUSE = 0.2  # seconds between two questions of the kernel
_PATIENCE = 30.0  # seconds for the actor to start and to answer
_END = b"null"  # a message of the kernel to itself: all before it has been passed on
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
    """Without one, any call of Ray would start a cluster."""
    import ray

    if os.getpid() != _PROCESS or not ray.is_initialized():
        raise OSError("this process has no connection to Ray")


class Mailbox:
    """Starts the actor, and passes each event to `on_event` in a thread of its own."""

    def __init__(self, on_event: Callable[[dict[str, Any]], None], name: str) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # Where this process is, since other nodes may be lost. With `soft` Ray may put it on one of those.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor = ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy=here)(_keeper())
        self.address, self._on_event = Box(name), on_event
        self._actor, self._closing = actor.options(name=name).remote(), threading.Event()
        self._reader = threading.Thread(target=self._read, name="labkit-mailbox", daemon=True)
        self._reader.start()

    def close(self, seconds: float = 5.0) -> None:
        """Pass on what has arrived, within `seconds`, and end the actor; what is sent from now on is lost."""
        import ray

        self._closing.set()
        if ray.is_initialized():
            with contextlib.suppress(Exception):  # of another cluster than this process has now
                try:
                    self._actor.put.remote([_END])
                    self._wait(seconds)
                finally:
                    ray.kill(self._actor)  # which answers what the reader is waiting for
        self._wait(_WAIT)  # Ray must not be shut down while a thread is in one of its calls

    def _wait(self, seconds: float) -> None:
        if threading.current_thread() is not self._reader:
            self._reader.join(seconds)

    def _read(self) -> None:
        import ray

        asked = None
        while ray.is_initialized():
            try:
                asked = asked or self._actor.take.remote(_WAIT)
                messages = ray.get(asked, timeout=_PATIENCE)
            except Exception as error:  # it starts, or its process was killed and starts again
                if not isinstance(error, ray.exceptions.GetTimeoutError):
                    asked = None  # but a late answer is waited for: it has what the actor no longer has
                if self._closing.wait(1.0):
                    return
                continue
            asked = None
            for message in messages:
                if message == _END:
                    return
                with contextlib.suppress(Exception):  # an event of another version of the lab
                    self._on_event(json.loads(message))
            self._closing.wait(_PAUSE)


def _keeper() -> type:
    """The actor's class. Made in a function, it is pickled by value: its node needs no labkit."""
    kept = _KEPT

    class Keeper:
        def __init__(self) -> None:
            import asyncio
            from collections import deque

            self._messages, self._news = deque(maxlen=kept), asyncio.Event()

        async def put(self, messages: list[bytes]) -> None:
            self._messages.extend(messages)
            if messages:
                self._news.set()

        async def take(self, seconds: float) -> list[bytes]:
            """All that have come, or come within `seconds`."""
            import asyncio

            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), seconds)
            self._news.clear()
            taken = list(self._messages)
            self._messages.clear()
            return taken

    return Keeper
