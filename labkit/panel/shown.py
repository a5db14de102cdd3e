"""`Shown` is what a panel shows of a run at one moment: the source of its HTML and of the lines of a log.

Each engine makes it from its `Run`: `labkit.panel.training_view`, `labkit.tune.sweep_view`, `labkit.data`.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from labkit.panel.run import Span

Mark = tuple[str, str]  # (look, text), as `labkit.display.cards.mark` takes them


@dataclass
class Table:
    """Rows under a head; a cell is text or a `Mark`."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | Mark]]
    more: int = 0  # rows that there are besides these
    stays: bool = True  # whether the summary has it, too
    widths: Sequence[int] = ()  # of the columns in percent, for a table whose numbers change


@dataclass
class Curve:
    """Points (x, y) under a name."""

    name: str
    points: list[tuple[float, float]]
    # "main"; "second", with its scale at the right; "pale" or "pale second", behind them; or "grey"
    look: str = "main"


@dataclass
class Plot:
    """Curves over one x axis from `begin` to `end`; `marks` are dotted verticals."""

    label: str
    curves: list[Curve]
    end: float
    begin: float = 0.0
    marks: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What is shown of a run, apart from its name, its state, its prints and its failures."""

    subtitle: str = ""  # on what it runs
    steps: Sequence[Mark] = ()  # a line of phases, or of counts
    progress: tuple[float | None, str] | None = None  # share that is done, if that is certain, and a text
    tiles: Sequence[tuple[str, str]] = ()  # large numbers: (value, name)
    tables: Sequence[Table] = ()
    plot: Plot | None = None
    spans: Sequence[Span] = ()
    strip: Sequence[tuple[str, Sequence[float]]] = ()  # whose, and the share of each part of its steps
    verdict: str = ""  # why it is slow, in a sentence
    notes: Sequence[str] = ()  # what is wrong, or happened meanwhile
    what: str = ""  # was done in the time that it took ("10 epochs")
    result: str = ""  # what came out, in one line
    news: Sequence[tuple[Hashable, str]] = ()  # lines of a log, by keys that stay
    brief: bool = False  # whether a log has only its end
