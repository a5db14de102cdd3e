"""The progress of a reader in a class: minutes per section, the latest runs, what the doctor would fix.

While ``HOME/class.json`` exists, labkit calls `attend` with each check, hint and prediction. An IPython hook
then notes each cell. A thread adds the cells up in ``exercises.json`` and starts the process that shares this
file, which ends with this kernel. No cell waits for the thread.
"""

import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from course.classroom import plan
from labkit import _jupyter
from labkit.settings import Settings

_PAUSE = 5.0  # seconds from one update of the file to the next
_IDLE = 15 * 60  # seconds without a cell that still count as work

Update = Callable[[Callable[[dict[str, Any]], None]], object]


def attend(update: Update, notebooks: Path) -> None:
    """Note each cell of this kernel from now on.

    Args:
        update: changes the content of ``exercises.json``.
        notebooks: the folder of the lessons.
    """
    shell = _jupyter.shell()
    if shell is not None:
        note = _attendance(update, notebooks).note
        if note not in shell.events.callbacks["post_run_cell"]:
            shell.events.register("post_run_cell", note)


class _Attendance:
    """The cells of this kernel, and the thread that adds them up."""

    def __init__(self, update: Update, notebooks: Path) -> None:
        self._update = update
        self._notebooks = notebooks
        self._cells: deque[tuple[str, float]] = deque(maxlen=1000)  # (source, when it ended), to be counted
        self._section = ""  # of the last cell that was counted
        self._since = 0.0  # when that section began
        self._ended = 0.0  # when that cell ended
        self._sharing: subprocess.Popen | None = None
        self._news = threading.Event()
        thread = threading.Thread(
            target=self._work,
            name="labkit-class",
            daemon=True,
        )
        thread.start()

    def note(self, result: Any) -> None:
        """Called by IPython after each cell."""
        self._cells.append((str(result.info.raw_cell), time.time()))
        self._news.set()

    def _work(self) -> None:
        while self._news.wait():
            self._news.clear()
            with contextlib.suppress(Exception):  # nothing of this may show up in a lesson
                self._count()
            time.sleep(_PAUSE)

    def _count(self) -> None:
        """Count the new cells and share them, if the reader is still in the class."""
        if not (Settings.from_env().home / "class.json").exists():
            self._cells.clear()  # they are no class's, nor of one that is joined later
            self._ended = 0.0
            return
        others = {"runs": _latest_runs(), "doctor": _doctors_topics()}
        self._update(partial(self._add, others))
        self._share()

    def _add(self, others: dict[str, Any], content: dict[str, Any]) -> None:
        """Add the time since the cell before to the section of each cell; set the `others`."""
        minutes = content.setdefault("minutes", {})
        while self._cells:
            source, ended = self._cells.popleft()
            before = self._ended or ended
            self._ended = ended
            sections = plan.read(self._notebooks).cells
            section = sections.get(source.strip()) or self._section
            if section != self._section:
                self._section = section
                self._since = before
            if section:
                spent = minutes.get(section, {}).get("minutes", 0)
                worked = max(ended - before, 0)
                spent += min(worked, _IDLE) / 60
                minutes[section] = {
                    "minutes": round(spent, 2),
                    "from": self._since,
                    "to": ended,
                }
        content.update(others)

    def _share(self) -> None:
        """Start the process that shares the file. One that has failed would fail again."""
        if self._sharing is None or self._sharing.poll() == 0:
            # It ends when its input does, which this kernel's end closes. With -P no file of the notebook's
            # folder can take the place of one of Python's modules.
            with open(Settings.from_env().home / "class-problem", "w") as problem:
                self._sharing = subprocess.Popen(
                    [sys.executable, "-P", "-m", "course.classroom", "share"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=problem,
                )


_attendance = cache(_Attendance)  # one for this kernel


def _latest_runs() -> dict[str, dict[str, float]]:
    """Return workers and rows/s of the latest finished run of each name that begins like a lesson ("03-").

    Others are the reader's own ("2026-01-client"), whose names aren't shared.
    """
    paths = Settings.from_env().home.glob("runs/[0-9][0-9]*-*/*/run_record.json")
    runs = {}
    for path in sorted(paths, key=lambda path: path.stat().st_mtime):
        with contextlib.suppress(ValueError, AttributeError, KeyError, TypeError):  # damaged
            record = json.loads(path.read_text(encoding="utf-8"))
            rate = record["rows_per_second"]
            of_lesson = re.match(r"\d\d[bc]?-", record["name"])
            if of_lesson and record["state"] == "finished" and rate:
                runs[record["name"]] = {
                    "workers": record.get("workers") or 1,
                    "rows/s": round(rate, 1),
                }
    return runs


@cache
def _doctors_topics() -> list[str]:
    """Return the topics that the doctor would fix, without its texts, which have paths and addresses."""
    from labkit.local.doctor import doctor

    return [finding.topic for finding in doctor().findings if not finding.ok]
