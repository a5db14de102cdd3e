"""Ray Tune: the panel of a sweep, and the checks before it starts."""

from labkit.tune.callback import SweepCallback
from labkit.tune.panel import SweepPanel

__all__ = ["SweepCallback", "SweepPanel"]
