"""Past runs: their records on disk, found, shown, compared, marked and reported.

Each panel writes a `RunRecord` below ``LABKIT_HOME/runs``. The functions here read these files again:
`table`, `plot`, `compare` and `report` show them, `latest`, `best` and `get` return one, and `tag` and `note`
mark one. Python alone is enough to find a record; pandas and matplotlib are imported where they are used.
"""

from labkit.runs.browse import best, get, latest, note, table, tag
from labkit.runs.figures import compare, plot, report
from labkit.runs.record import RunRecord

__all__ = ["RunRecord", "best", "compare", "get", "latest", "note", "plot", "report", "table", "tag"]
