"""Carry events from any process of a run to the kernel that draws them.

In a worker, a `Sender` puts each event into a bounded queue, and a thread of its own delivers what is there:
sending never blocks the training. The address says where it goes: mostly to a `Listener` of the kernel, by
ZeroMQ, encrypted by CURVE, so only a process that has the kernel's public key gets through; from a cluster of
Ray that the lab did not start, to an actor (`labkit.worker.mailbox`). Address and key are pickled
with the panel into the training function, so the key is in no environment variable and on no command line.

Nothing that arrives is unpickled.
"""

import contextlib
import os
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

from labkit.worker.events import (
    MAX_BYTES,
    Checkpoint,
    Event,
    Print,
    Report,
    decode,
    encode,
    numbers,
)

_RETRY_AFTER = 5.0  # seconds before a sender that failed tries again
_PAUSE = 0.2  # seconds between two deliveries: a call of an actor costs as much as a small model's step
_KEEP_OPEN = 60.0  # seconds without an event after which a sender hangs up: processes are used again
_QUEUE_SIZE = 1000  # messages; the oldest are dropped
_LINGER = 2000  # milliseconds that the end of a connection waits for its last messages to leave
_FLUSH_TIMEOUT = 5.0  # seconds that the end of a training function waits for that


class Sender:
    """Sends events from this process to an address; safe to use from several threads and signal handlers.

    It connects when there is something to send, also after a fork. While the kernel is busy or out of reach,
    the newest messages are kept, and of printed lines only as many as leave room for them.
    """

    def __init__(self, address: Any) -> None:
        self._address = address
        self._reset()

    def send(self, event: Event) -> None:
        """Queue one event for sending; never blocks. What is too long, or JSON can't express, is dropped."""
        message = encode(event)
        if message is None and isinstance(event, Report | Checkpoint):
            message = encode(replace(event, metrics=numbers(event.metrics)))
        if self._pid != os.getpid():
            self._reset()  # forked: the connection and the thread are the parent's
        if message is None:
            return
        # A thousand printed lines must not push out the report of an epoch.
        if isinstance(event, Print) and len(self._unsent) > _QUEUE_SIZE // 2:
            return
        self._unsent.append(message)
        if self._wake.empty():
            self._wake.put(None)
        # Ray keeps a report as soon as it has heard of it: the panel must have it before the worker can die.
        if isinstance(event, Report) and self._urgent.empty():
            self._urgent.put(None)
        self._start()

    def flush(self, seconds: float = _FLUSH_TIMEOUT) -> bool:
        """Send everything and hang up, within `seconds`; return whether that was possible."""
        self._hurry.set()
        self._wake.put(None)
        self._urgent.put(None)
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        self._hurry.clear()
        return self._thread is None and not self._unsent

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._unsent: deque[bytes] = deque(maxlen=_QUEUE_SIZE)
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._urgent: queue.SimpleQueue[None] = queue.SimpleQueue()  # ends the pause between two deliveries
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._hurry = threading.Event()
        self._silent_until = 0.0

    def _start(self) -> None:
        # A signal handler may interrupt this and send something itself, so no lock is waited for.
        if not self._starting.acquire(blocking=False):
            return
        try:
            if self._thread is None and time.monotonic() >= self._silent_until:
                self._thread = threading.Thread(target=self._work, name="labkit-sender", daemon=True)
                self._thread.start()
        finally:
            self._starting.release()

    def _work(self) -> None:
        """Send until that fails, `flush` asks for the end, or there is nothing to send for a while."""
        # Unlike atexit, this also runs at the end of a process that multiprocessing has forked.
        at_exit = Finalize(None, self.flush, exitpriority=10)
        batch: list[bytes] = []
        try:
            with contextlib.suppress(queue.Empty), self._address.connected() as deliver:
                while self._unsent or not self._hurry.is_set():
                    self._wake.get(timeout=_KEEP_OPEN)
                    batch = [self._unsent.popleft() for _ in range(len(self._unsent))]
                    deliver(batch)
                    batch = []
                    pause = 0 if self._hurry.is_set() else _PAUSE
                    with contextlib.suppress(queue.Empty):
                        self._urgent.get(timeout=pause)
        except Exception:
            room = _QUEUE_SIZE - len(self._unsent)
            newest = batch[max(len(batch) - room, 0) :]
            # In place: an event that another thread appends meanwhile stays.
            self._unsent.extendleft(reversed(newest))
            self._silent_until = time.monotonic() + _RETRY_AFTER
        at_exit.cancel()
        self._thread = None
        if self._unsent:
            self._start()  # an event came when this thread was about to end


class Address(NamedTuple):
    """Where a listener is, and its public key, which is left out of the repr."""

    url: str
    key: str

    def __repr__(self) -> str:
        return f"Address({self.url})"

    @contextlib.contextmanager
    def connected(self) -> Iterator[Callable[[list[bytes]], Any]]:
        """Yield a function that sends messages."""
        import zmq

        with zmq.Context() as context, context.socket(zmq.PUSH) as push:
            push.ipv6 = True
            push.linger = _LINGER
            push.sndhwm = 100
            push.curve_publickey, push.curve_secretkey = zmq.curve_keypair()
            push.curve_serverkey = self.key.encode()
            push.connect(self.url)

            def deliver(messages: list[bytes]) -> None:
                for message in messages:
                    push.send(message)

            yield deliver


class Listener:
    """Passes each event to `on_event`, in a thread of its own.

    Args:
        on_event: called with each event. What it raises is the end of that event only.
        host: the address or the name to bind, IPv4 or IPv6; loopback unless workers run on other machines.

    Raises:
        OSError: this machine has no such address.
    """

    def __init__(self, on_event: Callable[[Event], None], *, host: str = "127.0.0.1") -> None:
        import zmq

        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        family, *_, (ip, *_) = addresses[0]
        is_ipv6 = family == socket.AF_INET6
        public, secret = zmq.curve_keypair()
        self._over = threading.Event()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.ipv6 = is_ipv6
        self._socket.maxmsgsize = MAX_BYTES
        self._socket.curve_server = True
        self._socket.curve_secretkey = secret
        try:
            self._socket.bind(f"tcp://[{ip}]:*" if is_ipv6 else f"tcp://{ip}:*")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise OSError(error.errno, str(error)) from None
        endpoint = self._socket.last_endpoint.decode().rstrip("\0")
        self.address = Address(endpoint, public.decode())
        self._thread = threading.Thread(
            target=self._read, args=[on_event], name="labkit-channel", daemon=True
        )
        self._thread.start()

    def close(self, seconds: float = 2.0) -> None:
        """Pass on what has arrived, within `seconds`, and stop listening."""
        self._over.set()
        self._thread.join(seconds)

    def _read(self, on_event: Callable[[Event], None]) -> None:
        # A worker that reports and exits at once leaves its last events in the socket.
        while self._socket.poll(100) or not self._over.is_set():
            if self._socket.poll(0):
                with contextlib.suppress(Exception):
                    on_event(decode(self._socket.recv()))
        self._context.destroy(linger=0)
