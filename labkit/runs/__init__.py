"""Run records: written, found, shown in a table, plotted, compared."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    browse=("latest", "plot", "table"),
    figures=("compare",),
    record=("RunRecord",),
)
