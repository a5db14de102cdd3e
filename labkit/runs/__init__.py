"""Run records: written, found, shown in a table, plotted; and what other runs would cost."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    browse=("latest", "plot", "table"),
    payoff=("Payoff", "will_it_pay"),
    record=("RunRecord",),
)
