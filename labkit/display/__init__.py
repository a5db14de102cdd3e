"""What the rest of labkit draws with: cards, tables, figures, short tracebacks. It knows nothing of runs."""

from labkit.display.figures import figure_style, gallery, stacked_bars
from labkit.display.svg import Timeline

__all__ = ["Timeline", "figure_style", "gallery", "stacked_bars"]
