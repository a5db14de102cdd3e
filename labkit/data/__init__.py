"""Ray Data: the panel of its executions."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(__name__, panel=("DataPanel", "quiet"))
