"""Ray Data: the panel of an execution, operator by operator."""

from labkit.cluster.ray_data_log import quiet
from labkit.data.panel import DataPanel

__all__ = ["DataPanel", "quiet"]
