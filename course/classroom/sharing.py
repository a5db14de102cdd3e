"""What a learner shares with a class: one small JSON file, in a place that the teacher names.

    $ python -m course.classroom join /mnt/class --as ann
    $ python -m course.classroom show             # exactly what is shared

Who has not joined shares nothing. `join` writes ``HOME/class.json``. While that file exists, labkit notes
minutes and runs in ``exercises.json`` and starts `share` with each kernel: a process that puts what it may
share of ``exercises.json`` into the place. If the place doesn't answer, that process waits and no cell does.
"""

import contextlib
import json
import secrets
import select
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from course.classroom.place import NAME, explained, keys_file, open_place
from labkit.errors import BadInput
from labkit.files import atomic_write, json_object
from labkit.settings import Settings
from labkit.storage.keys import write_keys

_LONGEST = 40  # characters of a nickname
_PAUSE = 2.0  # seconds between two looks at exercises.json, which a kernel writes every five seconds at most
_JOIN = "python -m course.classroom join PLACE --as NICKNAME"


@dataclass(frozen=True, repr=False)
class Shared:
    """The content that is shared, its place and its file's name. Displays itself."""

    place: str = ""
    file: str = ""
    content: str = ""
    problem: str = ""

    def __repr__(self) -> str:
        if not self.place:
            return f"You are in no class, and nothing is shared. To join one: {_JOIN}"
        text = f"Shared in {self.place}, as {self.file}, and nothing else:\n{self.content}"
        if self.problem:
            text += f"\nThe last try failed: {self.problem}"
        return text


def join(place: str, nickname: str) -> Shared:
    """Share your progress from now on, in `place`, under `nickname`; returns what is shared.

    Args:
        place: the path of a folder, or the address of a bucket. Its keys come from ``LABKIT_S3_ACCESS_KEY``
            and ``LABKIT_S3_SECRET_KEY`` and are kept in ``LABKIT_HOME``, or are those that AWS's tools find.

    Raises:
        BadInput: the nickname is not one.
        NotReachable: the place cannot be written to.
    """
    name = nickname.strip() if isinstance(nickname, str) else ""
    if not (0 < len(name) <= _LONGEST and name.isprintable()):
        raise BadInput(
            "join the class",
            f"the nickname is {str(nickname)[:_LONGEST]!r}",
            f"choose 1 to {_LONGEST} letters, digits or signs",
        )
    leave()
    _forget()  # keys of an earlier class, whose class.json was lost
    if "://" not in place:
        place = str(Path(place).expanduser().absolute())
    member = {
        "place": place,
        "nickname": name,
        "file": f"{secrets.token_hex(8)}.json",
    }
    try:
        _write_keys(place)
        target = open_place(place)
        with explained("join the class", target):
            target.write(member["file"], _content(member))
        _write_member(member)
    except BaseException:
        _forget()
        raise
    return show()


def leave() -> bool:
    """Share nothing any more, and delete what is shared; whether there was a class to leave.

    A `LabError` says that the file cannot be deleted from the place. Even then nothing is shared any more.
    """
    member = _member()
    if member is None:
        return False
    target = open_place(member["place"])
    (_home() / "class.json").unlink()  # first of all, so that nothing is written once more
    try:
        with explained(f"delete {member['file']} from {member['place']}", target):
            target.delete(member["file"])
    finally:
        _forget()
    return True


def ask(*, done: bool = False) -> None:
    """Ask for help on the class's board; with `done`, no longer.

    Raises:
        LabError: you are in no class, or the place cannot be written to.
    """
    member = _member()
    if member is None:
        raise BadInput("ask for help on the board", "you are in no class", _JOIN)
    member["asks"] = not done
    target = open_place(member["place"])
    _write_member(member)  # a kernel may share meanwhile
    with explained("ask for help on the board", target):
        target.write(member["file"], _content(member))


def show() -> Shared:
    """Return exactly what is shared with the class: the content of the next write."""
    member = _member()
    if member is None:
        return Shared()
    problem = ""
    with contextlib.suppress(OSError):
        problem = (_home() / "class-problem").read_text(encoding="utf-8").strip()
    return Shared(
        member["place"],
        member["file"],
        _content(member).decode(),
        problem,
    )


def share() -> None:
    """Share what changes, until standard input ends: a kernel starts this, and its end closes the input.

    Several kernels of a home start several such processes, and one of them at a time shares.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(_home() / ".class.lock")
    shared = 0
    over = False
    while not over:
        member = _member()
        if member is None:
            return
        over = bool(select.select([sys.stdin], [], [], _PAUSE)[0])
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=0)
            shared = _share_change(member, shared)


def _share_change(member: dict[str, Any], shared: int) -> int:
    """Write the file if ``exercises.json`` has changed since the time `shared`; returns its present time."""
    problem = _home() / "class-problem"
    try:
        changed = (_home() / "exercises.json").stat().st_mtime_ns
        if changed != shared:
            target = open_place(member["place"])
            target.write(member["file"], _content(member))
            now = _member()
            if now is None or now["file"] != member["file"]:  # the reader has left, in another process
                target.delete(member["file"])
            elif now != member:  # or has asked for help
                target.write(member["file"], _content(now))
        problem.unlink(missing_ok=True)
        return changed
    except Exception as error:  # `show` prints it
        atomic_write(problem, f"{type(error).__name__}: {error}")
        return shared


def _content(member: dict[str, Any]) -> bytes:
    """Return the file. Names of the reader's own, paths, code, guesses and error texts are not in it."""
    kept = _kept()
    minutes = _entries(kept, "minutes", dict)
    predictions = _entries(kept, "predictions", dict)
    last = max(minutes, key=lambda section: minutes[section].get("to", 0), default="")
    spent = minutes.get(last, {})
    in_last = (time.time() - spent["from"]) / 60 if spent.get("from") else 0.0  # until this is written
    content = {
        "nickname": member["nickname"],
        "asks": member.get("asks") is True,
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "solved": sorted(_entries(kept, "solved", str)),
        "hints": _entries(kept, "hints", int),
        "predictions": {id: entry.get("verdict", "open") for id, entry in predictions.items()},
        "minutes": {section: entry.get("minutes", 0) for section, entry in minutes.items()},
        "section": {"name": last, "minutes": round(in_last, 1)},
        "runs": {name[:_LONGEST]: run for name, run in _entries(kept, "runs", dict).items()},
        "doctor": kept.get("doctor", []),
    }
    return json.dumps(content, indent=1).encode()


def _kept() -> dict[str, Any]:
    """Read ``exercises.json``; {} if there is none, or it is damaged."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return json_object((_home() / "exercises.json").read_bytes())
    return {}


def _entries(kept: dict[str, Any], section: str, of_type: type) -> dict[str, Any]:
    entries = kept.get(section) or {}
    return {name: entry for name, entry in entries.items() if isinstance(entry, of_type)}


def _member() -> dict[str, Any] | None:
    """Return what the reader has joined: place, nickname and file name, maybe `asks`; None if no class."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):  # damaged
        member = json.loads((_home() / "class.json").read_bytes())
        if NAME.fullmatch(member["file"]):
            return member
    return None


def _write_member(member: dict[str, Any]) -> None:
    atomic_write(_home() / "class.json", json.dumps(member), mode=0o600)


def _home() -> Path:
    return Settings.from_env().home


def _write_keys(place: str) -> None:
    settings = Settings.from_env()
    settings.make_home()
    if "://" in place and settings.s3_access_key and settings.s3_secret_key:
        write_keys(keys_file(), settings.s3_access_key, settings.s3_secret_key)


def _forget() -> None:
    for name in ("class.json", "class-problem"):
        (_home() / name).unlink(missing_ok=True)
    keys_file().unlink(missing_ok=True)
