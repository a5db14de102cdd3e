"""Carry events from any process of a run to the kernel that draws them.

In a worker, a `Sender` puts each event into a bounded queue, and a thread of its own delivers what is there:
sending never blocks the training. There are two ways for it to go, and the address says which.

- `Address`: the kernel listens, and the worker connects to it. One JSON object per message, framed and
  authenticated by `multiprocessing.connection`: both sides prove that they know a random key, which never
  crosses the wire. Address and key are pickled into the training function together with the panel, so no
  secret is in an environment variable or on a command line.
- `labkit.panel.tracking.mailbox.Box`: for runs of Ray, an actor that the kernel asks.

Nothing that arrives is unpickled. This needs the standard library alone.
"""

import contextlib
import json
import operator
import os
import queue
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge, wait
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

Deliver = Callable[[list[bytes]], Any]  # raises when no process takes messages any more

_RETRY_AFTER = 5.0  # seconds before a sender that failed tries again
_LOOK_EVERY = 5.0  # seconds between two looks at whether the kernel still listens, if nothing is sent
_QUEUE_SIZE = 1000  # messages; the oldest are dropped
_MAX_MESSAGE = 1 << 18  # bytes
_FLUSH_TIMEOUT = 5.0  # seconds that the end of a training function waits for its last messages to be sent


class Sender:
    """Sends events from this process to an address; safe to use from several threads.

    It connects at the first event, and again after a fork. While the kernel is busy or out of reach, the
    newest messages are kept, and of printed lines only as many as leave room for them.
    """

    def __init__(self, address: Any) -> None:
        self._address = address
        self._reset()

    def send(self, event: dict[str, Any]) -> None:
        """Queue one event for sending; never blocks. What JSON cannot express is dropped."""
        message = _message(event)
        if self._pid != os.getpid():
            self._reset()  # forked: the connection and the thread are the parent's
        # A thousand printed lines must not push out the report of an epoch.
        if message is None or (event.get("kind") == "print" and len(self._unsent) > _QUEUE_SIZE // 2):
            return
        # A signal handler may interrupt this and send something itself, so no lock is waited for.
        self._unsent.append(message)
        if self._wake.empty():
            self._wake.put(None)
        if time.monotonic() >= self._silent_until and self._starting.acquire(blocking=False):
            try:
                if not self._is_sending():
                    self._thread = threading.Thread(target=self._work, name="labkit-sender", daemon=True)
                    self._thread.start()
            finally:
                self._starting.release()

    def flush(self, seconds: float = _FLUSH_TIMEOUT) -> bool:
        """Wait until everything is sent, at most `seconds`; whether it was."""
        deadline = time.monotonic() + seconds
        while not self._is_done() and self._is_sending() and time.monotonic() < deadline:
            time.sleep(0.002)
        return self._is_done()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._unsent: deque[bytes] = deque(maxlen=_QUEUE_SIZE)
        self._under_way: list[bytes] = []
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._silent_until = 0.0

    def _is_done(self) -> bool:
        return not self._unsent and not self._under_way

    def _is_sending(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _work(self) -> None:
        """Send until that fails; then the first `send` after a while starts another thread.

        Ray and Spark reuse processes for tasks of many runs, so it also ends with the run that it reports to.
        """
        # Unlike atexit, this also runs at the end of a process that multiprocessing has forked.
        at_exit = Finalize(None, self.flush, exitpriority=10)
        with contextlib.suppress(Exception), self._address.connected() as deliver:
            while True:
                with contextlib.suppress(queue.Empty):
                    self._wake.get(timeout=_LOOK_EVERY)
                self._under_way = [self._unsent.popleft() for _ in range(len(self._unsent))]
                deliver(self._under_way)
                self._under_way = []
        self._unsent = deque([*self._under_way, *self._unsent], _QUEUE_SIZE)
        self._under_way = []
        self._silent_until = time.monotonic() + _RETRY_AFTER
        at_exit.cancel()


def _message(event: dict[str, Any]) -> bytes | None:
    """The event as JSON; None if JSON cannot express it, or it is too long."""
    try:
        message = json.dumps(event, separators=(",", ":"), default=_plain, skipkeys=True).encode()
    except Exception:  # a metric may be anything, and raise anything when it is converted
        return None
    return message if len(message) <= _MAX_MESSAGE else None


def _plain(value: Any) -> int | float | str:
    """A scalar of numpy or torch as a number, anything else as text."""
    for convert in (operator.index, float):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            return convert(value)
    return str(value)[:200]


class Address(NamedTuple):
    """Where a listener is, IPv4 or IPv6, and its key, which is left out of the repr."""

    host: str
    port: int
    key: str

    def __repr__(self) -> str:
        return f"Address({self.host}:{self.port})"

    @contextlib.contextmanager
    def connected(self) -> Iterator[Deliver]:
        """A connection to the listener: `multiprocessing.connection.Client` knows only IPv4."""
        with socket.create_connection((self.host, self.port)) as connected:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with Connection(os.dup(connected.fileno())) as connection:
                answer_challenge(connection, self.key.encode())
                deliver_challenge(connection, self.key.encode())

                def deliver(messages: list[bytes]) -> None:
                    if connection.poll():  # a listener never writes: it has hung up
                        raise EOFError
                    for message in messages:
                        connection.send_bytes(message)

                yield deliver


class Listener:
    """Accepts senders and passes each event to `on_event`, in one thread per sender.

    Args:
        on_event: called with each JSON object. An exception in it disconnects only that sender.
        host: the address to bind; loopback unless workers run on other machines.
    """

    def __init__(self, on_event: Callable[[dict[str, Any]], None], *, host: str = "127.0.0.1") -> None:
        self._on_event = on_event
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = socket.create_server((host, 0), family=family)
        self.address = Address(host, self._server.getsockname()[1], secrets.token_hex(16))
        self._waiting: dict[socket.socket, bool] = {}  # whether a client's thread waits for its next message
        self._lock = threading.Lock()  # around the end of a connection
        self._closed = False
        threading.Thread(target=self._accept, name="labkit-channel", daemon=True).start()

    def drain(self, seconds: float = 1.0) -> None:
        """Wait until everything that has arrived is passed on; at most `seconds`.

        A worker that reports and exits at once leaves its last events in the socket.
        """
        deadline = time.monotonic() + seconds
        while self._pending() and time.monotonic() < deadline:
            time.sleep(0.002)

    def close(self) -> None:
        """Stop listening and disconnect all senders."""
        self._closed = True
        with self._lock:
            for connected in (self._server, *self._waiting):
                with contextlib.suppress(OSError):  # wakes the thread that waits for it; close alone does not
                    connected.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _pending(self) -> bool:
        with self._lock:
            # Test readability first: a thread says that it no longer waits before it reads.
            return bool(wait(list(self._waiting), 0)) or not all(self._waiting.values())

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._server.accept()
            except OSError:
                time.sleep(0.1)  # closed, or this process has no file descriptor left at the moment
                continue
            with self._lock:
                if self._closed:  # while this one was accepted: nothing would ever disconnect it
                    client.close()
                    return
                self._waiting[client] = False
            name = "labkit-channel-peer"
            threading.Thread(target=self._serve, args=(client,), name=name, daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        key = self.address.key.encode()
        try:
            with Connection(os.dup(client.fileno())) as connection:
                deliver_challenge(connection, key)
                answer_challenge(connection, key)
                while True:
                    self._waiting[client] = True
                    connection.poll(None)
                    self._waiting[client] = False
                    self._on_event(json.loads(connection.recv_bytes(_MAX_MESSAGE)))
        except (OSError, EOFError, AuthenticationError, ValueError):
            pass  # it hung up, does not know the key, or sent something else
        finally:
            with self._lock:
                del self._waiting[client]
                client.close()
