"""What differs between two runs: settings, code, versions, metrics; and their curves on one figure."""

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.display import cards
from labkit.runs import figures
from labkit.runs.browse import flat, get
from labkit.runs.record import RunRecord

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

# In this order. What differs between any two runs (ids, times of day, paths) is not compared.
_COMPARED = (
    *("name", "engine", "state", "error", "workers", "scaling", "dataset", "rows", "data_fingerprint"),
    *("seed", "config", "commit", "versions", "host", "metrics", "epochs", "seconds_total"),
    *("rows_per_second", "waiting_share", "checkpoints", "tags", "note"),
)


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. Displays itself: the table, the difference of the code, and the figure.

    Attributes:
        a, b: the records.
        table: a row for each field that differs ("config.lr"), with a column for each run.
        code: a unified diff of the training functions; "" if they are equal.
    """

    a: RunRecord
    b: RunRecord
    table: "pandas.DataFrame"
    code: str

    @property
    def figure(self) -> "Figure":
        """The curves of both, and where their seconds went."""
        return figures.plot([self.a, self.b], None)

    def __repr__(self) -> str:
        return f"{self.table}\n\n{self.code or self._same_code()}"

    def _repr_html_(self) -> str:
        code = cards.pre(self.code) if self.code else cards.text(self._same_code())
        picture = f'<img alt="curves of both runs" src="{figures.data_uri(self.figure)}">'
        return f"{self.table.to_html()}{cards.frame(code)}{picture}"

    def _same_code(self) -> str:
        if self.a.code:
            return f"the code is equal ({self.a.code_hash})"
        return "neither record has its code"


def compare(a: str | RunRecord, b: str | RunRecord, home: Path | str | None = None) -> Comparison:
    """Compare two runs, given by their ids or their records. Code that only one of them has is a difference.

    Raises:
        RunError: there is no such run.
    """
    import pandas

    one, other = get(a, home), get(b, home)
    left, right = _compared(one), _compared(other)
    # As texts: NaN equals NaN then.
    names = [name for name in {**left, **right} if repr(left.get(name)) != repr(right.get(name))]
    names.sort(key=lambda name: _COMPARED.index(name.partition(".")[0]))
    rows = [(left.get(name), right.get(name)) for name in names]
    table = pandas.DataFrame(rows, index=names, columns=[one.run_id, other.run_id], dtype=object)
    lines = (run.all_code.splitlines() for run in (one, other))
    code = "\n".join(difflib.unified_diff(*lines, one.run_id, other.run_id, lineterm=""))
    return Comparison(one, other, table, code)


def _compared(run: RunRecord) -> dict[str, Any]:
    found = flat({name: getattr(run, name) for name in _COMPARED})
    return {name: value for name, value in found.items() if value not in (None, "", [])}
