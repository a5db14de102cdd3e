"""This machine's processes and ports, the supervisor that starts and stops them, and the doctor."""

from labkit.system.diagnosis import doctor
from labkit.system.overview import ports, processes

__all__ = ["doctor", "ports", "processes"]
