"""What a reader does with past runs: mark them with tags and a note, and delete them.

>>> runs.tag("20260131-120000-a1b2c3", "paper")
['paper']
>>> runs.note("20260131-120000-a1b2c3", "the learning rate was too high")
>>> runs.table(tag="paper", columns=["id", "note", "accuracy"])
>>> runs.delete("20260131-120000-a1b2c3", filesystem=store.filesystem)
"""

import json
import shutil
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from labkit.display.cards import Table
from labkit.errors import RunError
from labkit.files import atomic_write
from labkit.runs.browse import get
from labkit.runs.index import find
from labkit.runs.record import FILE_NAME, RunRecord
from labkit.settings import Settings

if TYPE_CHECKING:
    import pyarrow.fs


def tag(run: str | RunRecord, *tags: str, remove: bool = False, home: Path | str | None = None) -> list[str]:
    """Add tags to a run, or remove them; return those that it has then.

    Args:
        run: its id, or its record.

    Raises:
        RunError: there is no such run, or its record cannot be written to.
    """
    record = get(run, home)
    kept = [one for one in record.tags if one not in tags]
    return _change(record, "tags", kept if remove else [*kept, *dict.fromkeys(map(str, tags))])


def note(run: str | RunRecord, text: str, *, home: Path | str | None = None) -> None:
    """Write a note into the record of a run, in place of an earlier one.

    Raises:
        RunError: there is no such run, or its record cannot be written to.
    """
    _change(get(run, home), "note", str(text))


def delete(
    run: str | RunRecord,
    *,
    home: Path | str | None = None,
    filesystem: "pyarrow.fs.FileSystem | None" = None,
    checkpoints: bool = True,
) -> Table:
    """Delete the record of a run and its checkpoints, without a question; return what was removed.

    Checkpoints that another run of this home uses, too, are kept. That is so for runs with the same
    `RunConfig` name.

    Args:
        run: its id, or its record.
        filesystem: the store that has the checkpoints (``store.filesystem``), for those in a store.
        checkpoints: False keeps them.

    Raises:
        RunError: the run is running, or its checkpoints can't be deleted from here. Nothing is removed then.
    """
    home = Path(Settings.from_env().home if home is None else home).resolve()
    record = get(run, home)
    attempt = f"delete the run {record.run_id}"
    if record.state == "running":
        raise RunError(attempt, "it is running", "stop it first, or wait for its end")
    folder = Path(record.folder).resolve()
    others = [one for one in find(home) if Path(one.folder) != folder]
    if not folder.is_relative_to(home / "runs"):
        raise RunError(attempt, f"{folder} is not below {home}", "pass home=, or delete that folder yourself")
    removed = []
    if checkpoints and record.storage_path:
        from pyarrow.fs import FileType, LocalFileSystem

        path, users = plain_path(record.storage_path), [one.run_id for one in others if _uses(one, record)]
        local = filesystem is None and path.is_absolute()
        disk = LocalFileSystem() if local else filesystem
        if local and (not path.is_relative_to(home) or path == home):
            fix = "delete that folder yourself, then runs.delete(..., checkpoints=False)"
            raise RunError(attempt, f"its checkpoints, {path}, are not below {home}", fix)
        if users:
            done = f"kept: {', '.join(users[:3])} uses them, too"
        elif disk is None or len(path.parts) < 2 or ".." in path.parts:
            fix = "runs.delete(..., filesystem=store.filesystem), or checkpoints=False to keep them"
            raise RunError(attempt, f"its checkpoints, {path}, are no folder of a store that is known", fix)
        elif disk.get_file_info(str(path)).type == FileType.NotFound:
            done = "gone already"
        else:
            disk.delete_dir(str(path))
            done = "removed"
        removed.append(("checkpoints", record.storage_path, done))
    shutil.rmtree(folder)
    return Table(("what", "where", ""), [*removed, ("record", record.folder, "removed")])


def _change(record: RunRecord, field: str, value: Any) -> Any:
    """Change one field in the file of a record; what a newer version of the lab wrote into it stays."""
    path = Path(record.folder) / FILE_NAME
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        atomic_write(path, json.dumps(values | {field: value}, indent=1))
    except (OSError, ValueError) as error:
        raise RunError(f"change the record {path}", str(error), "make that folder writable") from error
    return value


def plain_path(path: str) -> PurePosixPath:
    """The path of a local folder without links, or of one in a store without the scheme of its URI."""
    scheme, _, rest = path.rpartition("://")
    if scheme not in ("", "file"):
        return PurePosixPath(rest.strip("/"))
    return PurePosixPath(Path(rest).resolve()) if rest.startswith("/") else PurePosixPath(rest)


def _uses(other: RunRecord, record: RunRecord) -> bool:
    """Whether deleting the checkpoints of `record` would take something from another run."""
    mine = plain_path(record.storage_path)
    if plain_path(other.folder).is_relative_to(mine):
        return True
    theirs = plain_path(other.storage_path) if other.storage_path else None
    return theirs is not None and (theirs.is_relative_to(mine) or mine.is_relative_to(theirs))
