"""This machine's processes and ports, as the lab recorded them, and the doctor."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(__name__, diagnosis=("doctor",), overview=("ports", "processes"))
