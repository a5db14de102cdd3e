"""This process's side of a connection to Ray: its environment, the check of the address, and `ray.init`."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from labkit import _ray
from labkit.cluster import ray_data
from labkit.errors import LabError, NotReachable
from labkit.files import text_of
from labkit.settings import absolute, set_variable

# What the lab sets for Ray, in the nodes and in the kernel.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # silent, and no waiting for a network that is not there
    "RAY_enable_metrics_collection": "0",  # for Prometheus; an agent would keep 1 MB of each run
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # seconds between a controller's looks at its workers, not 2
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",  # the panel shows progress; Ray Data would print lines
    "RAY_DATA_LOG_LEVEL": "WARNING",  # the same; see `labkit.cluster.ray_data`
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # on macOS, Ray starts only one node without it
}
# For a node with a fork server; all are settings of Ray.
FORKED = {
    # Ray would start one worker for each CPU when the first driver connects; but those of this driver have
    # another ``py_executable``.
    "RAY_prestart_worker_first_driver": "0",
    # Workers that may start at a time. Ray's default is the number of cores, because imports take seconds. It
    # prints a warning into the notebook when four times as many workers run on a node.
    "RAY_worker_maximum_startup_concurrency": "8",
    # Seconds for a worker's start, not 60. It may wait for the server's imports, on a cold disk.
    "RAY_worker_register_timeout_seconds": "300",
}

# Variable → its value before, and the one that was set; None: it was not there, or was removed.
_changed: dict[str, tuple[str | None, str | None]] = {}


def connect(
    address: str,
    *,
    token_file: Path | None,
    runtime_env: Mapping[str, Any],
) -> str | None:
    """Connect this process to a cluster, and return the URL of its dashboard.

    Args:
        token_file: has its authentication token. None: Ray's own order counts, see `read_token`.
        runtime_env: as for `ray.init`.

    After a LabError the environment is as it was before.
    """
    attempt = f"connect to the cluster at {address}"
    refuse_another_session(attempt)
    try:
        wants_token = check_reachable(address, read_token(token_file))
        check_node_here(address)
        set_environment(token_file, authenticate=wants_token)
        import ray

        try:
            context = ray.init(
                address=address,
                runtime_env=dict(runtime_env),
                log_to_driver=False,
                logging_level="ERROR",
            )
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.AuthenticationError) as error:
            lines = str(error).strip().splitlines()  # with a traceback of a server for clients that fails
            first_and_last = dict.fromkeys([lines[0], lines[-1]])
            fact = "Ray says: " + " … ".join(line.strip()[:200] for line in first_and_last)
            fix = "check it with `ray status` on its head; it needs this process's versions of Ray and Python"
            raise NotReachable(attempt, fact, fix) from error
    except BaseException:
        _shut_down()
        _put_back()
        raise
    return f"http://{context.dashboard_url}" if context.dashboard_url else None


def refuse_another_session(attempt: str) -> None:
    """Raise a LabError if the reader's own `ray.init()` has a session here, which may be a local cluster."""
    if "ray" in sys.modules:
        import ray  # another thread may not be done with it

        if ray.is_initialized():
            fact = "this process has a Ray session of its own, by ray.init() or by a first call of Ray"
            raise LabError(attempt, fact, "ray.shutdown() ends it and what runs in it; then try again")


def disconnect(head: str | None) -> None:
    """Disconnect from the cluster, and put the environment back, except where the reader has changed it.

    `head` is its address as Ray has it: a session with another one is the reader's own, and stays.
    """
    if is_connected_to(head):
        _shut_down()
    _put_back()


def _shut_down() -> None:
    if "ray" in sys.modules:
        import ray  # another thread may not be done with it

        ray.shutdown()


def _put_back() -> None:
    if "RAY_DATA_LOG_LEVEL" in _changed or "RAY_DATA_DISABLE_PROGRESS_BARS" in _changed:
        ray_data.show_again()
    for name, (before, here) in _changed.items():
        if os.environ.get(name) == here:
            set_variable(name, before)
    _changed.clear()
    _ray.reread_environment()


def connected_to() -> str | None:
    """Return the address of the head that Ray is connected to, as ``host:port``; None without a session."""
    import ray

    return ray.get_runtime_context().gcs_address if ray.is_initialized() else None


def is_connected_to(head: str | None) -> bool:
    """Return whether Ray is connected to the head with this address; None is no head's."""
    return head is not None and head == connected_to()


def set_environment(token_file: Path | None, *, authenticate: bool | None = None) -> None:
    """Set the token, and the variables that the reader has not set, also for a Ray that is imported.

    `authenticate`: without a file, whether the cluster wants a token; a process that wants one can't use a
    cluster without. Where both are None, Ray's own order and default count.
    """
    wanted: dict[str, str | None] = {k: v for k, v in ENVIRONMENT.items() if k not in os.environ}
    if token_file is not None:
        # Ray prefers RAY_AUTH_TOKEN, which in a container is the token of another cluster.
        wanted |= {"RAY_AUTH_TOKEN_PATH": str(token_file), "RAY_AUTH_TOKEN": None, "RAY_AUTH_MODE": "token"}
    else:
        if authenticate is not None and "RAY_AUTH_MODE" not in os.environ:
            wanted["RAY_AUTH_MODE"] = "token" if authenticate else "disabled"
        path = os.environ.get("RAY_AUTH_TOKEN_PATH")
        if path:  # Ray reads the file again later, in any folder
            wanted["RAY_AUTH_TOKEN_PATH"] = absolute(path)
    for name, value in wanted.items():
        before = _changed[name][0] if name in _changed else os.environ.get(name)
        _changed[name] = before, value
        set_variable(name, value)
    _ray.reread_environment()
    ray_data.set_log_level(os.environ["RAY_DATA_LOG_LEVEL"])
    if os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] == "1":
        ray_data.hide_progress_bars()


def read_token(file: Path | None = None) -> str | None:
    """Return the token in `file`; by default the one that Ray finds, in its order. None if there is none."""
    if file is None:
        token = os.environ.get("RAY_AUTH_TOKEN", "").strip()
        if token:
            return token
        path = os.environ.get("RAY_AUTH_TOKEN_PATH")
        file = Path(absolute(path)) if path else Path.home() / ".ray" / "auth_token"
    return text_of(file) or None


def check_reachable(address: str, token: str | None) -> bool | None:
    """Ask a cluster at ``host:port`` or ``ray://host:port`` whether it wants a token.

    Raises a `LabError` if none answers: Ray itself tries for one to two minutes before it reports that. Any
    other address ("auto"), and a cluster behind TLS, is left to Ray, with None where the answer isn't known.
    """
    host = address.removeprefix("ray://")
    unknown = True if token else None
    if ":" not in host or "/" in host or os.environ.get("RAY_USE_TLS") == "1":
        return unknown
    status, details = _ask(address, None)
    wants_token = status == "UNAUTHENTICATED"
    if wants_token and token:
        status, details = _ask(address, token)
    attempt = f"connect to the cluster at {address}"
    if status == "UNAUTHENTICATED":
        fact = "it refused the token" + ("" if token else ": none was found")
        fix = "copy the token of its head to ~/.ray/auth_token, or name its file: "
        raise NotReachable(attempt, fact, fix + f"cluster.connect({address!r}, token_file=…)")
    if status in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
        fix = "check the address with `ray status` on its head, and that the port is reachable from here"
        raise NotReachable(attempt, f"nothing answers there ({details})", fix)
    # Any other status is left to Ray: another version of it may have renamed the call.
    return wants_token if wants_token or not status else unknown


def check_node_here(address: str) -> None:
    """Raise a `LabError` if this machine is no node of Ray and the address ``host:port`` needs one.

    Ray 2.60 looks for a node's process here, by itself for a minute, and then names no cause.
    """
    host, colon, _ = address.partition(":")
    if not colon or "/" in address:
        return
    if any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"])):
        return
    fact = "this machine is no node of it, and what connects to HOST:PORT has to run on one"
    fix = f"open the notebook on one of its nodes, or connect from here as a Ray client: ray://{host}:10001"
    raise NotReachable(f"connect to the cluster at {address}", fact, fix)


def _ask(address: str, token: str | None) -> tuple[str, str]:
    """Return the name of the gRPC status with which a cluster answers, "" if all is well; and details."""
    import grpc  # Ray's own transport; it comes with Ray

    call = _ray.CLIENT_CALL if address.startswith("ray://") else _ray.HEAD_CALL
    metadata = [("authorization", f"Bearer {token}")] if token else []
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address.removeprefix("ray://"), options=options) as channel:
        try:
            channel.unary_unary(call)(b"", timeout=10, metadata=metadata)
        except grpc.RpcError as error:
            return error.code().name, (error.details() or "")[:120]
    return "", ""
