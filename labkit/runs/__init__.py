"""Run records: written, found, shown in a table, plotted."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    browse=("latest", "plot", "table"),
    record=("RunRecord",),
)
