"""Experiments of the reader's own: a script, a notebook and tests, written from templates."""

from labkit.new.writing import new

__all__ = ["new"]
