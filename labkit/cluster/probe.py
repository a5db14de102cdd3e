"""Whether a Ray cluster answers at an address, and takes our token: asked in seconds.

Ray itself tries for one to two minutes before it says that nobody is there, and in words of its own.
"""

import contextlib
import os
from pathlib import Path

from labkit.errors import ClusterError

_PATIENCE = 10.0  # seconds; a far cluster answers within one
# A call without effect of the head's server, and of its server for Ray clients.
_HEAD, _CLIENTS = "/ray.rpc.NodeInfoGcsService/CheckAlive", "/ray.rpc.RayletDriver/ClusterInfo"


def knock(address: str, token: Path | None) -> None:
    """Ask the cluster at ``host:port`` or ``ray://host:port`` for a sign of life.

    Any other address ("auto"), and a cluster behind TLS, is left to Ray.

    Raises:
        ClusterError: nobody answers there, something else does, or it refuses the token.
    """
    host = address.removeprefix("ray://")
    if ":" not in host or "/" in host or os.environ.get("RAY_USE_TLS") == "1":
        return
    for_clients = address.startswith("ray://")
    own, other = (_CLIENTS, _HEAD) if for_clients else (_HEAD, _CLIENTS)
    answer, details = _answer(host, own, token)
    attempt = f"connect to the cluster at {address}"
    if answer == "UNAUTHENTICATED":
        named = token or "~/.ray/auth_token"
        raise ClusterError(
            attempt,
            "it refused the token" + ("" if token else ": none was found"),
            f"copy the token file of its head to {named}, or name it: connect(address, token_file=…)",
        )
    # Another version of Ray may have renamed the call: then Ray itself is to try.
    if answer == "UNIMPLEMENTED" and _answer(host, other, token)[0] != "UNIMPLEMENTED":
        there = "a cluster's head" if for_clients else "a cluster's server for Ray clients"
        better = f'connect("{host}")' if for_clients else f'connect("ray://{host}"), or the port of its head'
        raise ClusterError(attempt, f"what answers there is {there}", f"{better} (6379 and 10001 are usual)")
    if answer in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
        raise ClusterError(
            attempt,
            f"nobody answers there ({details[:120]})",
            "check the address with `ray status` on its head, and that the port is reachable from here",
        )


def _answer(host: str, call: str, token: Path | None) -> tuple[str, str]:
    """(gRPC status, its details) of one call."""
    import grpc  # Ray's own transport; it comes with Ray

    secret = _secret(token) if token else ""
    metadata = [("authorization", f"Bearer {secret}")] if secret else []
    with grpc.insecure_channel(host, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(call)(b"", timeout=_PATIENCE, metadata=metadata)
        except grpc.RpcError as error:
            return error.code().name, error.details() or ""
    return "OK", ""


def _secret(token: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if (text := token.read_text(encoding="ascii").strip()).isprintable():
            return text
    raise ClusterError(
        "read the cluster's token", f"{token} is no token file", "copy the token file from the cluster's head"
    )
