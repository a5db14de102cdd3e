"""The live panel of a run: one `Run` and one template in the kernel."""

from labkit.panel.panel import Panel

__all__ = ["Panel"]
