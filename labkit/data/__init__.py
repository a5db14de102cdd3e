"""Ray Data: the panel of an execution, operator by operator."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(__name__, panel=("DataPanel", "quiet"))
