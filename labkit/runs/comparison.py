"""What differs between two runs: settings, code, versions, metrics; and their curves on one figure."""

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import escape

from labkit.errors import expect_installed
from labkit.runs import figures
from labkit.runs.browse import flat, get
from labkit.runs.record import Home, RunRecord

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
        return figures.draw([self.a, self.b])

    def _repr_html_(self) -> str:
        # It may scroll, which the keyboard can do only where the focus is.
        code = f'<pre tabindex="0">{escape(self.code or "The code is equal.")}</pre>'
        picture = f'<img alt="curves of both runs" src="{figures.data_uri(self.figure)}">'
        return f"{self.table.to_html()}{code}{picture}"

    def __repr__(self) -> str:
        return f"{self.table}\n\n{self.code or 'The code is equal.'}"


def compare(a: str | RunRecord, b: str | RunRecord, home: Home = None) -> Comparison:
    """Compare two runs, given by their ids or their records. Code that only one of them has is a difference.

    Raises:
        LabError: there is no such run.
    """
    expect_installed("compare two runs", "pandas")
    import pandas

    one, other = get(a, home), get(b, home)
    left, right = (flat({name: getattr(run, name) for name in _COMPARED}) for run in (one, other))
    # As texts: NaN equals NaN then.
    names = [name for name in {**left, **right} if repr(left.get(name)) != repr(right.get(name))]
    names.sort(key=lambda name: _COMPARED.index(name.partition(".")[0]))
    rows = [(left.get(name), right.get(name)) for name in names]
    table = pandas.DataFrame(rows, index=names, columns=[one.run_id, other.run_id], dtype=object)
    lines = (run.code.splitlines() for run in (one, other))
    code = "\n".join(difflib.unified_diff(*lines, one.run_id, other.run_id, lineterm=""))
    return Comparison(one, other, table, code)
