"""This process's side of a connection to Ray: its environment, the check of the address, and `ray.init`.

The only file of the room, but for the fork server, that touches undocumented names of Ray.
"""

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import Any

from labkit.cluster import ray_data_log
from labkit.errors import ClusterError
from labkit.settings import PACKAGE_ROOT

# What the lab sets for Ray, in the nodes and in the kernel; each is a documented setting.
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",  # silent, and no waiting for a network that is not there
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # seconds between a controller's looks at its workers, not 2
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",  # the panel shows progress; Ray Data would print lines
}
# A call without effect to the head's server, and to its server for Ray clients.
_HEAD, _CLIENTS = "/ray.rpc.NodeInfoGcsService/CheckAlive", "/ray.rpc.RayletDriver/ClusterInfo"

_changed: dict[str, tuple[str | None, str]] = {}  # variable → its value before, and the one that was set


def connect(
    address: str, token: Path | None, *, ship: bool = False, py_executable: str | None = None
) -> str | None:
    """Connect this process to a cluster, and return the address of its dashboard.

    Args:
        token: the file with its authentication token.
        ship: send the package labkit along, for nodes that do not have it.
        py_executable: what Ray's workers run instead of python.

    Raises:
        ClusterError: no cluster answers, or it refuses. Then the environment is as it was before.
    """
    # Without RAY_ADDRESS, Ray's state API asks the cluster that was started last on this machine (a file in
    # /tmp/ray names it). If that one has ended, each run of Ray Train waits 12 s for it.
    environment: dict[str, Any] = {"env_vars": {"RAY_ADDRESS": address}}
    if ship:
        environment = {"py_modules": [str(PACKAGE_ROOT)]}
    if py_executable is not None:
        environment["py_executable"] = py_executable
    try:
        check_reachable(address, token)
        set_environment(token)
        import ray

        ray.shutdown()  # a connection that the reader made without the lab would be in the way
        options = {"runtime_env": environment, "log_to_driver": False, "logging_level": "ERROR"}
        try:
            context = ray.init(address=address, **options)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.AuthenticationError) as error:
            raise ClusterError(
                f"connect to the cluster at {address}",
                f"Ray says: {str(error).splitlines()[0][:200]}",
                "check it with `ray status` on its head; it needs the versions of Ray and Python of this one",
            ) from error
    except BaseException:
        disconnect()
        raise
    return getattr(context, "dashboard_url", None)


def user_token() -> Path | None:
    """Ray's own token file of this user, if there is one."""
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    return path if path.is_file() else None


def disconnect() -> None:
    """Disconnect from the cluster, and put the environment back, except where the reader has changed it."""
    if "ray" in sys.modules:
        import ray  # another thread may not be done with it

        ray.shutdown()
    for name, (before, here) in _changed.items():
        if os.environ.get(name) == here:
            del os.environ[name]
            if before is not None:
                os.environ[name] = before
    _changed.clear()
    _reread_environment()


def set_environment(token: Path | None) -> None:
    """Set the token file, and the variables that the reader has not set, also for a Ray that is imported."""
    wanted = {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    if token is not None:
        wanted["RAY_AUTH_TOKEN_PATH"] = str(token)
    for name, value in wanted.items():
        before, _ = _changed.get(name, (os.environ.get(name), ""))
        _changed[name] = before, value
        os.environ[name] = value
    _reread_environment()
    # Ray Data would report once that its bars are off.
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)
    ray_data_log.quiet()
    if "ray.data" in sys.modules and os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] == "1":
        from ray.data import DataContext

        DataContext.get_current().enable_progress_bars = False


def _reread_environment() -> None:
    """Ray reads it at its import: an `import ray` in an earlier cell must not lock the reader out."""
    if "ray" in sys.modules:
        with contextlib.suppress(ImportError, AttributeError):  # another Ray: then the import counts
            from ray._raylet import AuthenticationTokenLoader, Config

            Config.initialize("")
            AuthenticationTokenLoader.instance().reset_cache()


def check_reachable(address: str, token: Path | None) -> None:
    """Ask the cluster at ``host:port`` or ``ray://host:port`` for a sign of life.

    Ray itself tries for one to two minutes before it reports that there is no answer. Any other address
    ("auto"), and a cluster behind TLS, is left to Ray.

    Raises:
        ClusterError: nothing answers there, or it refuses the token.
    """
    host = address.removeprefix("ray://")
    if ":" not in host or "/" in host or os.environ.get("RAY_USE_TLS") == "1":
        return
    import grpc  # Ray's own transport; it comes with Ray

    call = _CLIENTS if address.startswith("ray://") else _HEAD
    metadata = [("authorization", f"Bearer {token.read_text().strip()}")] if token else []
    with grpc.insecure_channel(host, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(call)(b"", timeout=10, metadata=metadata)
        except grpc.RpcError as error:
            status, details = error.code().name, (error.details() or "")[:120]
        else:
            return
    # Any other status is left to Ray: another version of it may have renamed the call.
    attempt = f"connect to the cluster at {address}"
    if status == "UNAUTHENTICATED":
        raise ClusterError(
            attempt,
            "it refused the token" + ("" if token else ": none was found"),
            f"copy the token file of its head to {token or '~/.ray/auth_token'}, or name it: "
            "connect(address, token_file=…)",
        )
    if status in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
        fix = "check the address with `ray status` on its head, and that the port is reachable from here"
        raise ClusterError(attempt, f"nothing answers there ({details})", fix)
