"""Ray Tune: the panel of a sweep, and the checks before it starts."""

from labkit.tune.panel import SweepCallback, SweepPanel

__all__ = ["SweepCallback", "SweepPanel"]
