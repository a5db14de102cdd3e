"""What Ray reads from this process's environment: set while a cluster is connected, then put back."""

import contextlib
import logging
import os
import sys
from pathlib import Path

# What the lab sets for Ray, in the nodes and in the kernel; each is a documented setting.
VARIABLES = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",  # silent, and no waiting for a network that is not there
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # seconds between a controller's looks at its workers, not 2
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",  # the panel shows progress; Ray Data would print lines
}

_changed: dict[str, tuple[str | None, str]] = {}  # variable → its value before, and the one set here


def prepare(token: Path | None) -> None:
    """Set the token file and what the reader has not set, also where Ray is imported already."""
    wanted = {name: value for name, value in VARIABLES.items() if name not in os.environ}
    if token is not None:
        wanted["RAY_AUTH_TOKEN_PATH"] = str(token)
    for name, value in wanted.items():
        before, _ = _changed.get(name, (os.environ.get(name), ""))
        _changed[name] = before, value
        os.environ[name] = value
    _tell_ray()
    # Ray Data would say once that its bars are off.
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)
    if "ray.data" in sys.modules and os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] == "1":
        from ray.data import DataContext

        DataContext.get_current().enable_progress_bars = False


def restore() -> None:
    """Put back the values from before the first `prepare`, unless the reader has set others since."""
    for name, (before, here) in _changed.items():
        if os.environ.get(name) == here:
            del os.environ[name]
            if before is not None:
                os.environ[name] = before
    if _changed:
        _changed.clear()
        _tell_ray()


def _tell_ray() -> None:
    """Ray reads these when it is imported; `import ray` in an earlier cell must not lock us out."""
    if "ray" in sys.modules:
        with contextlib.suppress(ImportError, AttributeError):  # another Ray: then only the import counts
            from ray._raylet import AuthenticationTokenLoader, Config

            Config.initialize("")
            AuthenticationTokenLoader.instance().reset_cache()
