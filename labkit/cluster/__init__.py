"""A Ray cluster of real `ray start` processes: start one, connect to one, ask what fits on it."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__, capacity=("Node",), handle=("Cluster",), lifecycle=("connect", "current", "start")
)
