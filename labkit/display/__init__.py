"""What the other rooms draw with: cards, tables, figures, short tracebacks. It knows nothing of runs."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    figures=("figure_style", "stacked_bars"),
    images=("gallery",),
    timeline=("Timeline",),
)
