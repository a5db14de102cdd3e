"""What the rest of labkit draws with: cards, tables, figures, short tracebacks. It knows nothing of runs."""

from labkit.display.figures import figure_style

__all__ = ["figure_style"]
