"""Experiments of the reader's own: a script, a notebook and tests, written from templates."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(__name__, writing=("new",))
