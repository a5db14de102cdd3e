"""Carry events from any process of a run to the kernel that draws them.

The kernel listens; each worker connects and sends one JSON object per message, framed and authenticated by
`multiprocessing.connection`: both sides prove that they know a random key, which never crosses the wire.
Nothing that arrives is unpickled. Address and key are pickled into the training function together with the
panel, so no secret is in an environment variable or on a command line.

Sending never blocks the training: `Sender.send` only puts the message into a bounded queue, and a thread of
its own delivers it. While the kernel is busy or out of reach, the newest messages are kept, and of printed
lines only as many as leave room for them.
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
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge, wait
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

_RETRY_AFTER = 5.0  # seconds before a sender that failed tries again
_LOOK_EVERY = 5.0  # seconds between two looks at whether the listener is still there, if nothing is sent
_QUEUE_SIZE = 1000  # messages; the oldest are dropped
_MAX_MESSAGE = 1 << 18  # bytes
_FLUSH_TIMEOUT = 2.0  # seconds that the end of a training function waits for its last messages to be sent


class Address(NamedTuple):
    """Where a listener is, and its key, which is left out of the repr."""

    host: str
    port: int
    key: str

    def __repr__(self) -> str:
        return f"Address({self.host}:{self.port})"


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


class Sender:
    """Sends events to a `Listener` from this process; safe to use from several threads.

    It connects at the first event, and again after a fork.
    """

    def __init__(self, address: Address) -> None:
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
                    self._thread = threading.Thread(target=self._deliver, name="labkit-sender", daemon=True)
                    self._thread.start()
            finally:
                self._starting.release()

    def flush(self, seconds: float = _FLUSH_TIMEOUT) -> bool:
        """Wait until everything is sent, at most `seconds`; whether it was."""
        deadline = time.monotonic() + seconds
        while self._unsent and self._is_sending() and time.monotonic() < deadline:
            time.sleep(0.002)
        return not self._unsent

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._unsent: deque[bytes] = deque(maxlen=_QUEUE_SIZE)
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._silent_until = 0.0

    def _is_sending(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _deliver(self) -> None:
        """Send until that fails; then the first `send` after a while starts another thread.

        Ray and Spark reuse processes for tasks of many runs, so it also ends with the run that it reports to.
        """
        # Unlike atexit, this also runs at the end of a process that multiprocessing has forked.
        at_exit = Finalize(None, self.flush, exitpriority=10)
        try:
            with _connect(*self._address) as connection:
                while not connection.poll():  # a listener never writes: it has hung up
                    with contextlib.suppress(queue.Empty):
                        self._wake.get(timeout=_LOOK_EVERY)
                    while self._unsent:
                        message = self._unsent[0]
                        connection.send_bytes(message)
                        # A full queue may have dropped it meanwhile.
                        if self._unsent and self._unsent[0] is message:
                            self._unsent.popleft()
        except (OSError, EOFError, AuthenticationError):
            pass
        self._silent_until = time.monotonic() + _RETRY_AFTER
        at_exit.cancel()


def _connect(host: str, port: int, key: str) -> Connection:
    """A connection to a listener, IPv4 or IPv6: `multiprocessing.connection.Client` knows only the first."""
    with socket.create_connection((host, port)) as connected:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(os.dup(connected.fileno()))
    try:
        answer_challenge(connection, key.encode())
        deliver_challenge(connection, key.encode())
    except BaseException:
        connection.close()
        raise
    return connection


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
