"""Find the run records of a home. An index makes that fast: ten thousand of them take less than a second.

The index, ``runs/.index.json``, has most of each record, with the time, the size and the inode of its file. A
record whose file has changed is read again, so the index can be deleted at any time. Its first line is a
checksum of the rest.
"""

import contextlib
import json
import os
import warnings
import zlib
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from labkit.errors import RunError
from labkit.files import atomic_write
from labkit.runs.record import FILE_NAME, RunRecord, folder_of, lost_if_gone, read

LEFT_OUT = ("history", "code", "called", "extra", "versions", "host", "seconds", "scaling")
_INDEX = ".index.json"
_EMPTY = vars(RunRecord(name="", run_id="", engine="", state="", started_at=""))
_FIELDS = [f.name for f in fields(RunRecord) if f.name not in (*LEFT_OUT, "folder")]


def find(home: Path | str, *, names: Iterable[str] | None = None) -> list[RunRecord]:
    """Read the records below ``home/runs``, newest run first. A damaged one is skipped with a warning.

    They have all fields but `LEFT_OUT`; ``read(record.folder)`` has those, too. Only the folders from
    `folder_of` are searched: a sweep may store thousands of files below ``runs``.

    Args:
        names: only runs with one of these names.
    """
    root = Path(home) / "runs"
    known, folders = _read_index(root), _folders(root)
    if names is not None:
        folders &= {folder_of(home, name).name for name in names}
    entries, found, stale = {}, [], 0
    for key in sorted(key for folder in folders for key in _folders(root / folder, f"{folder}/")):
        path = f"{root}/{key}/{FILE_NAME}"
        try:
            stat = os.stat(path)
        except OSError:
            continue  # the folder has no record
        stamp = f"{stat.st_mtime_ns} {stat.st_size} {stat.st_ino}"
        entry = known.get(key)
        try:
            if entry is None or entry[0] != stamp:
                stale += 1
                record = read(path)
                values = {name: getattr(record, name) for name in _FIELDS}
                entry = [
                    stamp,
                    {name: value for name, value in values.items() if value not in (None, "", [], {})},
                ]
            entries[key] = entry
            record = lost_if_gone(_fast(entry[1] | {"folder": f"{root}/{key}"}))
        except RunError as error:
            warnings.warn(f"skipped {path}: {error.fact}", stacklevel=2)
        else:
            if names is None or record.name in names:  # two names may share a folder
                found.append(record)
    if stale > len(entries) // 100:  # writing the index of many runs takes longer than reading a few records
        others = {key: entry for key, entry in known.items() if key.partition("/")[0] not in folders}
        with contextlib.suppress(OSError):  # a home that cannot be written to
            content = json.dumps({"fields": _FIELDS, "records": others | entries}).encode()
            atomic_write(root / _INDEX, f"{zlib.crc32(content)}\n".encode() + content)
    return sorted(found, key=lambda record: (record.moment, record.run_id), reverse=True)


def _fast(values: dict[str, Any]) -> RunRecord:
    """``RunRecord(**values)`` in a tenth of the time; the values were checked when they were read."""
    record = object.__new__(RunRecord)
    vars(record).update(_EMPTY | values)
    return record


def _read_index(root: Path) -> dict[str, list]:
    """Folder → [stamp, values]; empty if there is no index, or it is damaged or of another version."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        checksum, _, content = (root / _INDEX).read_bytes().partition(b"\n")
        if int(checksum) == zlib.crc32(content) and (index := json.loads(content))["fields"] == _FIELDS:
            return index["records"]
    return {}


def _folders(path: Path, prefix: str = "") -> set[str]:
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return {prefix + entry.name for entry in entries if entry.is_dir()}
    return set()
