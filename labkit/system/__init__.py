"""This machine's processes, the supervisor that starts and stops them, and the doctor."""

from labkit.system.diagnosis import doctor

__all__ = ["doctor"]
