"""`find` by its former place; import it from `labkit.runs.record`."""

from labkit.runs.record import find

__all__ = ["find"]
