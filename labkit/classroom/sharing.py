"""What a learner shares with a class: one small JSON file, in a place that the teacher names.

    $ python -m labkit class join /mnt/class --as ann
    >>> from labkit import classroom
    >>> classroom.show()                   # exactly what is shared

Who has not joined shares nothing. After a cell, a thread writes the file, at most every five seconds. A cell
never waits for it: if the place doesn't answer, that one thread hangs, and none is started next to it.
A process could be killed then, but it costs half a second of CPU each time; a thread needs milliseconds.
"""

import contextlib
import json
import re
import secrets
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from labkit.classroom import kept, plan
from labkit.classroom.place import explained, keys_file, open_place
from labkit.errors import LabError
from labkit.files import atomic_write, json_object
from labkit.settings import Settings

NICKNAME = 40  # its most characters
_PAUSE = 5.0  # seconds between two writes
_IDLE = 15 * 60  # seconds without a cell that still count as work
_JOIN = "python -m labkit class join PLACE --as NICKNAME"

_lock = threading.Lock()
_again = threading.Event()  # something has happened since the file was last put together
_thread: threading.Thread | None = None
_cells: deque[tuple[str, float]] = deque(maxlen=1000)  # (source, when it ended) of those not yet counted
_told: dict[str, Any] = {"at": -_PAUSE, "problem": ""}  # of this process: the last write


@dataclass(frozen=True, repr=False)
class Shared:
    """What is shared, where and under which name. Displays itself."""

    place: str
    file: str
    content: str
    problem: str = ""

    def __repr__(self) -> str:
        if not self.place:
            return f"You are in no class, and nothing is shared. To join one: {_JOIN}"
        failed = f"\nThe last try failed: {self.problem}" if self.problem else ""
        return f"Shared in {self.place}, as {self.file}, and nothing else:\n{self.content}{failed}"


def join(place: str, nickname: str) -> Shared:
    """Share your progress from now on, in `place`, under `nickname`; returns what is shared.

    Args:
        place: the path of a folder, or the address of a bucket. The keys of a bucket come from
            ``LABKIT_S3_ACCESS_KEY`` and ``LABKIT_S3_SECRET_KEY`` and are kept in ``LABKIT_HOME``, or are
            those that AWS's tools find.

    Raises:
        LabError: the nickname is not one, or the place cannot be written to.
    """
    name = nickname.strip() if isinstance(nickname, str) else ""
    if not (0 < len(name) <= NICKNAME and name.isprintable()):
        fact = f"the nickname is {str(nickname)[:NICKNAME]!r}"
        raise LabError("join the class", fact, f"choose 1 to {NICKNAME} letters, digits or signs")
    leave()
    settings = Settings.from_env()
    settings.make_home()
    if "://" not in place:
        place = str(Path(place).expanduser().absolute())
    elif settings.s3_access_key and settings.s3_secret_key:
        from labkit.storage.client import write_keys

        write_keys(keys_file(), settings.s3_access_key, settings.s3_secret_key)
    member = {"place": place, "nickname": name, "file": f"{secrets.token_hex(8)}.json"}
    atomic_write(_member_file(), json.dumps(member), mode=0o600)
    try:
        with explained("join the class", target := open_place(place, keys_file())):
            target.write(member["file"], _content(member).encode())
    except BaseException:
        _forget()
        raise
    return show()


def leave() -> bool:
    """Share nothing any more, and delete what is shared; whether there was a class to leave.

    Raises:
        LabError: the file cannot be deleted from the place. From then on nothing is shared all the same.
    """
    if not (member := _member()):
        return False
    target = open_place(member["place"], keys_file())
    _member_file().unlink(missing_ok=True)  # first of all, so that no kernel writes once more
    try:
        with explained(f"delete {member['file']} from {member['place']}", target):
            target.delete(member["file"])
    finally:
        _forget()
    return True


def show() -> Shared:
    """What is shared with the class, to the letter: the file of the next write."""
    member = _member()
    if not member:
        return Shared("", "", "")
    return Shared(member["place"], member["file"], _content(member), _told["problem"])


def attend() -> None:
    """If this reader has joined a class: share after each cell; outside of a notebook, now."""
    if not _member_file().exists():
        return
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None:
        _wake()
    elif _after_cell not in shell.events.callbacks["post_run_cell"]:
        shell.events.register("post_run_cell", _after_cell)


def _after_cell(result: Any) -> None:
    _cells.append((str(getattr(result.info, "raw_cell", "")), time.time()))
    _wake()


def _wake() -> None:
    global _thread
    with _lock:
        _again.set()
        if _thread is None:
            _thread = threading.Thread(target=_work, name="labkit-class", daemon=True)
            _thread.start()


def _work() -> None:
    """Write the file until nothing new has happened."""
    global _thread
    while True:
        time.sleep(max(0.0, _told["at"] + _PAUSE - time.monotonic()))
        _again.clear()
        try:
            _publish()
            _told["problem"] = ""
        except Exception as error:  # it must not show up in a lesson; `show` says it
            _told["problem"] = f"{type(error).__name__}: {error}"
        _told["at"] = time.monotonic()
        with _lock:
            if not _again.is_set():
                _thread = None
                return


def _publish() -> None:
    if not (member := _member()):
        return
    _count_minutes()
    target = open_place(member["place"], keys_file())
    target.write(member["file"], _content(member).encode())
    if not _member_file().exists():  # the reader has left meanwhile, in another process
        target.delete(member["file"])


def _count_minutes() -> None:
    """Add the time since the cell before to the section of each cell that has ended."""
    while _cells:
        source, ended = _cells.popleft()
        before, here, since = _told.get("cell", (ended, "", ended))
        section = plan.read().section_of.get(source.strip(), here)
        if section != here:
            since = before
        _told["cell"] = ended, section, since
        if section:
            spent = kept.load("minutes").get(section, {}).get("minutes", 0)
            spent = round(spent + min(max(ended - before, 0), _IDLE) / 60, 2)
            kept.keep("minutes", section, {"minutes": spent, "from": since, "to": ended}, replace=True)


def _content(member: dict[str, str]) -> str:
    """The file. Names of the reader's own, paths, code, guesses and error texts are not in it."""
    minutes = kept.load("minutes")
    last = max(minutes, key=lambda section: minutes[section]["to"], default="")
    there = (minutes[last]["to"] - minutes[last]["from"]) / 60 if last else 0
    content = {
        "nickname": member["nickname"],
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "solved": sorted(kept.load("solved")),
        "hints": kept.load("hints"),
        "predictions": {id: one.get("verdict", "open") for id, one in kept.load("predictions").items()},
        "minutes": {section: one["minutes"] for section, one in minutes.items()},
        "section": {"name": last, "minutes": round(there, 1)},
        "runs": _runs(),
        "doctor": _doctor(),
    }
    return json.dumps(content, indent=1)


def _runs() -> dict[str, dict[str, float]]:
    """The latest finished run of each name that begins like a lesson ("03-"): workers, rows/s, speed-up.

    The speed-up is over the latest run of one worker in the same lesson.
    """
    from labkit.runs import index

    latest: dict[str, Any] = {}
    for run in index.find(Settings.from_env().home):  # newest first
        if run.state == "finished" and run.rows_per_second and re.match(r"\d\d-", run.name):
            latest.setdefault(run.name[:NICKNAME], run)
    alone = {name[:2]: run for name, run in reversed(latest.items()) if run.workers == 1}
    shared = {}
    for name, run in latest.items():
        shared[name] = {"workers": run.workers, "rows/s": round(run.rows_per_second, 1)}
        if run.workers > 1 and name[:2] in alone:
            speed_up = run.rows_per_second / alone[name[:2]].rows_per_second
            shared[name]["speed-up"] = round(speed_up, 2)
    return shared


@cache
def _doctor() -> list[str]:
    """The topics that the doctor would fix; its texts have paths and addresses."""
    from labkit.system import doctor

    return [finding.topic for finding in doctor().findings if not finding.ok]


def _member() -> dict[str, str] | None:
    """Place, nickname and file name; None if the reader is in no class."""
    kinds = dict.fromkeys(("place", "nickname", "file"), str)
    with contextlib.suppress(OSError, ValueError):
        member = json_object(_member_file().read_bytes(), kinds)
        if kinds.keys() <= member.keys() and re.fullmatch(r"[0-9a-f]{16}\.json", member["file"]):
            return member
    return None


def _member_file() -> Path:
    return Settings.from_env().home / "class.json"


def _forget() -> None:
    _member_file().unlink(missing_ok=True)
    keys_file().unlink(missing_ok=True)
    open_place.cache_clear()
