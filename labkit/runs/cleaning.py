"""What is old under ``LABKIT_HOME``, for ``python -m labkit clean``: found, measured, removed.

Old is what nothing was written into for a time, and not since the oldest living process of the lab started:
so nothing that a living process has made is old. Runs with a tag or a note are never old, and no symbolic
link is followed. All else under the home (exercises, keys, data sets, uploaded objects) is left alone.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from labkit.display.cards import Table
from labkit.display.formatting import plural, size
from labkit.machine import host_id
from labkit.runs.edit import plain_path
from labkit.runs.index import find
from labkit.runs.record import RunRecord
from labkit.system.process_registry import ProcessRegistry

_DAY = 86_400


@dataclass(frozen=True)
class Old:
    """A file or a folder with all that is in it.

    Attributes:
        written: when something in it was written last, in Unix seconds.
    """

    what: str
    path: Path
    bytes: int
    written: float


def find_old(home: Path, seconds: float) -> list[Old]:
    """What nothing was written into for so long."""
    home, registry, before = home.resolve(), ProcessRegistry(home), time.time() - seconds
    objects = home / "objects" / "rclone"  # and in it a folder for each bucket
    dead, serves = [], any(one.role == "object server" and one.alive for one in registry.records())
    for group in registry.groups():
        members = registry.members(group)
        if not members and not registry.has_owner(group):
            dead.append(group)
        for process in members:
            with contextlib.suppress(psutil.Error):
                before = min(before, process.create_time())
    kept: set[Path] = set()
    found = [*_runs(home), *_rest(home, dead)]
    for record in find(home):
        folder, checkpoints = Path(record.folder), _checkpoints(record, home)
        stored = [path for path in checkpoints if objects in path.parents[1:] and path.exists()]
        measured = [_measured("checkpoints", path) for path in (folder, *stored)]
        young = any(one is None or one.written >= before for one in measured)
        # A record goes together with its checkpoints, or no later clean could find those.
        if young or record.state == "running" or record.tags or record.note or (serves and stored):
            kept.update((folder, *checkpoints))
        found += [("checkpoints", path) for path in stored]
    if not serves:
        found += [("interrupted upload", path) for path in objects.rglob(".rclone_temp_*")]
    above = {path for one in kept for path in (one, *one.parents)}
    free = (one for one in dict.fromkeys(found) if one[1] not in above and kept.isdisjoint(one[1].parents))
    return [one for one in (_measured(*each) for each in free) if one is not None and one.written < before]


def remove(old: Old) -> None:
    """Remove it from the disk.

    Raises:
        OSError: the disk does not allow it.
    """
    if old.path.is_dir():
        shutil.rmtree(old.path)
    else:
        old.path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # the folder has something else, or is in use
        if old.what == "run":
            old.path.parent.rmdir()


def summary(found: list[Old], home: Path) -> Table:
    """One row for all things of a kind in a folder."""
    groups: dict[tuple[str, Path], list[Old]] = {}
    for one in found:
        groups.setdefault((one.what, one.path.parent), []).append(one)
    rows = []
    for (what, folder), ones in sorted(groups.items()):
        days = sorted(int((time.time() - one.written) / _DAY) for one in ones)
        where, total = folder.relative_to(home.resolve()), sum(one.bytes for one in ones)
        rows.append((what, where, len(ones), size(total), f"{days[0]}–{days[-1]}"))
    line = f"{plural(len(found), 'thing')}, {size(sum(one.bytes for one in found))}, under {home}"
    return Table(("what", "in", "number", "size", "days old"), rows, line)


def _runs(home: Path) -> Iterator[tuple[str, Path]]:
    for folder in (home / "runs").glob("*/"):
        inside = list(folder.iterdir())
        # A folder with files of its own is one of Ray Train or Tune; with folders alone, each is a run.
        whole = any(not path.is_dir() for path in inside)
        yield from (("run", path) for path in ([folder] if whole else inside))


def _rest(home: Path, dead: list[str]) -> Iterator[tuple[str, Path]]:
    yield from (("records of ended processes", home / "processes" / host_id() / group) for group in dead)
    for what, pattern in (
        ("Ray session", "ray/*/session_*"),
        ("socket", "ray/*/fork-*"),
        ("Spark session", "spark/spark-*"),
        ("workspace", "workspaces/*"),
    ):
        yield from ((what, path) for path in home.glob(pattern))


def _checkpoints(record: RunRecord, home: Path) -> list[Path]:
    """Where they are on this disk, in the lab's own object store too; empty if the record doesn't say."""
    if not record.storage_path:
        return []
    return [home / "objects" / "rclone" / plain_path(record.storage_path)]  # an absolute path stays one


def _measured(what: str, path: Path) -> Old | None:
    """None where there is nothing, where a link leads there, or where something was removed meanwhile."""
    total, written = 0, 0.0
    try:
        if path.resolve(strict=True) != path:
            return None
        inside = (Path(at, name) for at, *names in os.walk(path) for name in (*names[0], *names[1]))
        for one in (path, *inside):
            status = one.lstat()
            total += 0 if one.is_dir() else status.st_size
            written = max(written, status.st_mtime)
    except OSError:
        return None
    return Old(what, path, total, written)
