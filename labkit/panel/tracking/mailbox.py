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
_PAUSE = 0.2  # seconds between two questions of the kernel, and between two drawings
_PATIENCE = 30.0  # seconds for the actor to start and to answer
_LAST = 2.0  # seconds for its answer when it was killed
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
        keeper = ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy=here)(_keeper())
        # It is asked five times a second, and Ray must not keep a note of each call.
        self._actor = keeper.options(name=name, enable_task_events=False).remote()
        self.address, self._on_event, self._closing = Box(name), on_event, threading.Event()
        self._reader = threading.Thread(target=self._read, name="labkit-mailbox", daemon=True)
        self._reader.start()

    def close(self, seconds: float = 5.0) -> None:
        """Pass on what has arrived, within `seconds`, and end the actor; what is sent from now on is lost."""
        import ray

        self._closing.set()
        self._reader.join(seconds)
        if ray.is_initialized():
            with contextlib.suppress(Exception):  # of another cluster than this process has now
                ray.kill(self._actor)  # which answers what the reader is waiting for
        self._reader.join(_LAST)  # Ray must not be shut down while a thread is in one of its calls

    def _read(self) -> None:
        import ray

        last = False
        while ray.is_initialized() and not last:
            last = self._closing.wait(_PAUSE)  # then it asks once more
            messages = []
            with contextlib.suppress(Exception):  # it starts, or its process was killed and starts again
                messages = ray.get(self._actor.take.remote(), timeout=_PATIENCE)
            for message in messages:
                with contextlib.suppress(Exception):  # an event of another version of the lab
                    self._on_event(json.loads(message))


def _keeper() -> type:
    """The actor's class. Made in a function, it is pickled by value: its node needs no labkit."""
    kept = _KEPT

    class Keeper:
        def __init__(self) -> None:
            from collections import deque

            self._messages = deque(maxlen=kept)

        def put(self, messages: list[bytes]) -> None:
            self._messages.extend(messages)

        def take(self) -> list[bytes]:
            """All that have come since the last call."""
            taken = list(self._messages)
            self._messages.clear()
            return taken

    return Keeper
