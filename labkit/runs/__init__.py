"""Past runs: their records on disk, listed, found and noted on.

Each panel writes a `RunRecord` below ``LABKIT_HOME/runs``. `table` lists them as a pandas DataFrame, `latest`
and `get` return one, and `note` writes a note on one. Python alone is enough to find a record.
"""

from labkit.runs.browse import get, latest, note, table
from labkit.runs.record import RunRecord

__all__ = ["RunRecord", "get", "latest", "note", "table"]
