"""The live panel of a run: tracking in the worker, one `Run` and one template in the kernel."""

from typing import Any

__all__ = ["Panel"]


def __getattr__(name: str) -> Any:
    """Import `Panel` when it is first asked for: a worker unpickles a tracker, and draws nothing."""
    if name != "Panel":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from labkit.panel.panel import Panel

    return Panel
