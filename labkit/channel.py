"""Carry events from any process of a run to the kernel that draws them.

The kernel listens; workers, whatever engine started them, connect and send one JSON object per line.
The address and a random key travel inside the training function (pickled with the panel), so no
engine has to know of it and no secret stands in an environment variable or a command line.

A sender never disturbs a training: it waits for at most `_PATIENCE` seconds for a kernel that does not
read, then gives up for a while. What it is given meanwhile it keeps, the last `_UNSENT_KEPT` events: a
kernel that is busy for a moment must not lose the report of an epoch.

The handshake is a challenge: the listener sends a nonce, the sender answers with HMAC-SHA256(key,
nonce), so the key itself never crosses the wire, and only JSON is ever parsed from the other side.
"""

import contextlib
import hmac
import json
import operator
import os
import secrets
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Address", "Listener", "Sender"]

_PATIENCE = 0.5  # seconds that a training may be held up by a kernel that does not read
_RETRY_AFTER = 5.0  # seconds before a sender that failed tries again
_UNSENT_KEPT = 200  # events
_MAX_LINE = 1 << 18  # bytes; a longer line is not one of ours
_GREETING = 5.0  # seconds that a caller has to prove that it knows the key


class Address(tuple):
    """(host, port, key) of a listener. The key is left out of its repr."""

    __slots__ = ()

    def __new__(cls, host: str, port: int, key: str) -> "Address":
        return super().__new__(cls, (host, port, key))

    def __getnewargs__(self) -> tuple[str, int, str]:
        return tuple(self)

    def __repr__(self) -> str:
        return f"Address({self[0]}:{self[1]})"


class Listener:
    """Accepts senders and hands each event to `on_event`, in a thread of its own per sender.

    Args:
        on_event: called with each decoded JSON object. An exception in it ends only that sender.
        host: the address to bind; loopback unless workers run on other machines.
    """

    def __init__(self, on_event: Callable[[dict[str, Any]], None], *, host: str = "127.0.0.1") -> None:
        self._on_event = on_event
        self._key = secrets.token_hex(16)
        self._server = socket.create_server((host, 0))
        self.address = Address(host, self._server.getsockname()[1], self._key)
        self._peers: set[_Peer] = set()
        self._closed = False
        threading.Thread(target=self._accept, name="labkit-channel", daemon=True).start()

    def __repr__(self) -> str:
        return f"Listener({self.address[0]}:{self.address[1]})"

    def drain(self, seconds: float = 1.0) -> None:
        """Wait until all that has arrived is handed on; at most `seconds`.

        A worker that reports and ends at once leaves its last events in the socket.
        """
        deadline = time.monotonic() + seconds
        while any(peer.pending() for peer in list(self._peers)) and time.monotonic() < deadline:
            time.sleep(0.002)

    def close(self) -> None:
        """Stop listening. Senders that are connected notice at their next event."""
        self._closed = True
        with contextlib.suppress(OSError):
            # shutdown wakes the thread that sits in accept(); close alone does not.
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for peer in list(self._peers):
            peer.hang_up()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._server.accept()
            except OSError:
                time.sleep(0.1)  # closed; or this process has no file descriptor left at the moment
                continue
            peer = _Peer(connection)
            self._peers.add(peer)
            threading.Thread(
                target=self._serve, args=(peer,), name="labkit-channel-peer", daemon=True
            ).start()

    def _serve(self, peer: "_Peer") -> None:
        try:
            for line in peer.lines(self._key):
                event = _event(line)
                if event is not None:
                    self._on_event(event)
        finally:
            peer.close()
            self._peers.discard(peer)


class _Peer:
    """A caller of a listener: its lines, once it has proved that it knows the key."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._waits = False  # whether its thread sits there until something arrives

    def lines(self, key: str) -> Iterator[bytes]:
        """Yield each whole line, until the caller hangs up or sends one that is too long."""
        nonce = secrets.token_hex(16)
        with contextlib.suppress(OSError):
            self._connection.sendall(nonce.encode() + b"\n")
            proof, rest = self._greeting()
            # Bytes: compare_digest raises on a text that is not ASCII.
            if not hmac.compare_digest(proof, _proof(key, nonce)):
                return
            while True:
                *lines, rest = rest.split(b"\n")
                yield from lines
                if len(rest) > _MAX_LINE or not (received := self._receive()):
                    return  # what is left was cut off in the middle
                rest += received

    def pending(self) -> bool:
        """Whether something has arrived that its thread is not done with."""
        # In this order: the thread ceases to wait before it takes anything away.
        return self._readable(0) or not self._waits

    def hang_up(self) -> None:
        """Wake its thread, and tell the caller."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._waits = True  # there is nothing to wait for any more
        self._connection.close()

    def _greeting(self) -> tuple[bytes, bytes]:
        """The caller's first line, and what came behind it."""
        received, deadline = b"", time.monotonic() + _GREETING
        while b"\n" not in received and len(received) < 100:
            self._connection.settimeout(max(deadline - time.monotonic(), 0.001))
            part = self._connection.recv(4096)
            if not part:
                break
            received += part
        self._connection.settimeout(None)
        line, _, rest = received.partition(b"\n")
        return line, rest

    def _receive(self) -> bytes:
        self._waits = True
        self._readable(None)
        self._waits = False
        return self._connection.recv(1 << 16)

    def _readable(self, milliseconds: float | None) -> bool:
        # select() knows no descriptor above 1023; a poll object serves one thread at a time.
        poll = select.poll()
        try:
            poll.register(self._connection, select.POLLIN)
        except ValueError:  # it is closed
            return False
        return bool(poll.poll(milliseconds))


class Sender:
    """Sends events to a `Listener` from this process; safe to use from several threads.

    It connects at the first event, and anew after a fork.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._reset()

    def __repr__(self) -> str:
        return f"Sender({self._address!r})"

    def send(self, event: dict[str, Any]) -> bool:
        """Send one event; False if nobody takes it now: it is kept for later, as long as there is room."""
        line = _line(event)
        if self._pid != os.getpid():
            self._reset()  # forked: the connection is the parent's, and so is whoever holds the lock
        if line is None:
            return False
        with self._lock:
            self._unsent.append(line)
            # A signal's handler that prints may come back to here in the middle of a send.
            if self._sending or time.monotonic() < self._silent_until:
                return False
            self._sending = True
            try:
                self._send_all()
            except OSError:
                self._give_up()
            except BaseException:
                self._give_up()  # interrupted, perhaps in the middle of a line
                raise
            finally:
                self._sending = False
            return not self._unsent

    def close(self) -> None:
        """Close the connection; what was sent is still delivered."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None
        self._unsent: deque[bytes] = deque(maxlen=_UNSENT_KEPT)
        self._sending = False
        self._silent_until = 0.0

    def _send_all(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        if self._socket is None:
            self._socket = self._connect(deadline)
        while self._unsent and (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            self._socket.sendall(self._unsent[0])
            self._unsent.popleft()

    def _connect(self, deadline: float) -> socket.socket:
        host, port, key = self._address
        connection = socket.create_connection((host, port), timeout=_PATIENCE)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            nonce = connection.recv(256).strip().decode("ascii", "replace")
            connection.sendall(_proof(key, nonce) + b"\n")
        except BaseException:
            connection.close()
            raise
        return connection

    def _give_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._silent_until = time.monotonic() + _RETRY_AFTER


def _proof(key: str, nonce: str) -> bytes:
    return hmac.new(key.encode(), nonce.encode(), "sha256").hexdigest().encode()


def _line(event: dict[str, Any]) -> bytes | None:
    """The event as a line of JSON; None if there is no way to say it."""
    try:
        line = json.dumps(event, separators=(",", ":"), default=_plain, skipkeys=True).encode() + b"\n"
    except Exception:  # a metric may be anything, and raise whatever it likes when it is asked for a text
        return None
    return line if len(line) <= _MAX_LINE else None


def _event(line: bytes) -> dict[str, Any] | None:
    """The JSON object in a line, or None."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _plain(value: Any) -> int | float | str:
    """What JSON has no word for: a scalar of numpy or torch as its number, anything else as text."""
    for convert in (operator.index, float):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            return convert(value)
    return str(value)[:200]
