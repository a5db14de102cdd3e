"""Old folders under ``LABKIT_HOME``, for ``python -m labkit clean``: runs, checkpoints, sessions, checks.

Old is a folder that nothing was written into for a time. A run that is running, or has a note, is
never old, and neither are checkpoints that it shares with others. All else under the home (exercises, keys,
data sets, uploaded objects) is left alone. Ray and Spark use their sessions while they run, so stop the lab
before you remove what `old_folders` lists.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from labkit.local.lab import Lab
from labkit.runs.record import RunRecord, find

_LEFT_BEHIND = (
    "ray/*/session_2*",  # sessions, with their logs
    "spark/spark-*",
    "public/public-*",
    "check-*",  # of exercises whose kernel was killed during the check
)


def old_folders(home: Path, seconds: float) -> dict[Path, int]:
    """Return the folders that nothing was written into for so long, and the bytes in each."""
    home = home.resolve()
    limit = time.time() - seconds
    old: list[Path] = []
    for pattern in _LEFT_BEHIND:
        old.extend(home.glob(pattern))
    old.extend(Lab(home).folder.parent.glob("*/session_2*"))  # of a home with a long path
    used: set[Path] = set()
    for record in find(home):
        folders = [Path(record.folder), *_checkpoints(record, home)]
        is_young = any(_measure(folder)[1] >= limit for folder in folders)
        if is_young or record.state == "running" or record.note:
            for folder in folders:
                used.update([folder, *folder.parents])
        else:
            old += folders
    sizes = {}
    for path in old:
        if path.resolve() == path and path not in used:
            size, written = _measure(path)
            if written < limit:
                sizes[path] = size
    return {path: size for path, size in sizes.items() if sizes.keys().isdisjoint(path.parents)}


def _checkpoints(record: RunRecord, home: Path) -> Iterator[Path]:
    """Yield the folder of a run's checkpoints if it is below the home: a run's own, and never a bucket."""
    store = home / "objects" / "rclone"  # and in it a folder for each bucket
    storage_path = record.storage_path or ""
    path = store / storage_path.rpartition("://")[2]  # or an absolute path
    path = path.resolve()
    if not path.is_dir():
        return
    for root in (store, home / "runs"):
        if root in path.parents and path.parent != root:
            yield path


def _measure(folder: Path) -> tuple[int, float]:
    """Return the bytes in a folder, and when something in it was last written; no link is followed."""
    stats = [path.lstat() for path in (folder, *folder.rglob("*"))]
    size = sum(stat.st_size for stat in stats)
    written = max(stat.st_mtime for stat in stats)
    return size, written
