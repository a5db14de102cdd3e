"""Carry events from any process of a run to the kernel that draws them.

The kernel listens; workers, whatever engine started them, connect and send one JSON object per line.
The address and a random key travel inside the training function (pickled with the panel), so no
engine has to know of it and no secret stands in an environment variable or a command line.

A sender never disturbs a training: it waits for at most `_PATIENCE` seconds for a kernel that does not
read, then gives up for a while and drops what it was given.

The handshake is a challenge: the listener sends a nonce, the sender answers with HMAC-SHA256(key,
nonce), so the key itself never crosses the wire, and only JSON is ever parsed from the other side.
"""

import contextlib
import hmac
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Address", "Listener", "Sender"]

_PATIENCE = 0.5  # seconds that a training may be held up by a kernel that does not read
_RETRY_AFTER = 5.0  # seconds before a sender that failed tries again
_MAX_LINE = 1 << 20  # bytes; a longer line is not one of ours
_PROOF_BYTES = 64  # hex digits of SHA-256


class Address(tuple):
    """(host, port, key) of a listener. The key is left out of its repr."""

    __slots__ = ()

    def __new__(cls, host: str, port: int, key: str) -> "Address":
        return super().__new__(cls, (host, port, key))

    def __getnewargs__(self) -> tuple[str, int, str]:
        return tuple(self)

    def __repr__(self) -> str:
        return f"Address({self[0]}:{self[1]})"


def _proof(key: str, nonce: str) -> str:
    return hmac.new(key.encode(), nonce.encode(), "sha256").hexdigest()


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
        threading.Thread(target=self._accept, name="labkit-channel", daemon=True).start()

    def __repr__(self) -> str:
        return f"Listener({self.address[0]}:{self.address[1]})"

    def close(self) -> None:
        """Stop accepting. Senders that are connected notice at their next event."""
        with contextlib.suppress(OSError):
            # shutdown wakes the thread that sits in accept(); close alone does not.
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return  # closed
            threading.Thread(
                target=self._serve, args=(connection,), name="labkit-channel-peer", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError):
            connection.settimeout(5)
            nonce = secrets.token_hex(16)
            connection.sendall(nonce.encode() + b"\n")
            stream = connection.makefile("rb")
            answer = stream.read(_PROOF_BYTES + 1).strip().decode("ascii", "replace")
            if not hmac.compare_digest(answer, _proof(self._key, nonce)):
                return
            connection.settimeout(None)
            while line := stream.readline(_MAX_LINE):
                if not line.endswith(b"\n"):
                    return  # too long, or cut off in the middle: nothing after it can be trusted
                event = json.loads(line)
                if isinstance(event, dict):
                    self._on_event(event)


class Sender:
    """Sends events to a `Listener` from this process; safe to use from several threads.

    It connects at the first event, and anew after a fork.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._pid = 0
        self._silent_until = 0.0

    def __repr__(self) -> str:
        return f"Sender({self._address!r})"

    def send(self, event: dict[str, Any]) -> bool:
        """Send one event; False if it was dropped because nobody takes it."""
        line = json.dumps(event, separators=(",", ":"), default=str).encode() + b"\n"
        if len(line) > _MAX_LINE:
            return False
        with self._lock:
            if time.monotonic() < self._silent_until:
                return False
            try:
                self._connected().sendall(line)
            except OSError:
                self._drop()
                return False
        return True

    def close(self) -> None:
        """Close the connection; what was sent is still delivered."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _connected(self) -> socket.socket:
        if self._socket is not None and self._pid == os.getpid():
            return self._socket
        host, port, key = self._address
        connection = socket.create_connection((host, port), timeout=2)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        nonce = connection.makefile("rb").readline(256).strip().decode("ascii", "replace")
        connection.sendall(_proof(key, nonce).encode() + b"\n")
        connection.settimeout(_PATIENCE)
        self._socket, self._pid = connection, os.getpid()
        return connection

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._silent_until = time.monotonic() + _RETRY_AFTER
