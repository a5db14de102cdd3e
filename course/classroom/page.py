"""The board of a class: one HTML page about everybody who has joined, written again every few seconds.

    $ python -m course.classroom board /mnt/class

The template escapes all texts, and its content security policy lets no script run but the one that reloads
the page.
"""

import base64
import contextlib
import hashlib
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from course.classroom import plan
from course.classroom.learner import Learner, read
from course.classroom.place import Bucket, Folder, explained, open_place
from labkit.errors import LabError
from labkit.files import atomic_write

_AWAY = 60  # minutes without a sign of life: not stuck, but away
_RUNS = 40  # names of runs that are shown, those of most learners first


def board(
    place: str, path: Path | str = "board.html", *, stuck: float = 10, every: float = 5, once: bool = False
) -> Path:
    """Write the board of the class in `place` to `path`, and renew it until it is interrupted.

    Args:
        stuck: minutes in the same section after which a learner is listed as stuck.
        every: seconds from one page to the next.
        once: do not renew it.

    Raises:
        LabError: the place cannot be read, or the page cannot be written, at the first try. A later one is
            printed, and the board goes on.
    """
    target, path = open_place(place), Path(path).absolute()
    _write(target, path, stuck, every)
    print(f"open {path} in a browser" + ("" if once else "; Ctrl-C ends the board"), flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        while not once:
            time.sleep(every)
            try:
                _write(target, path, stuck, every)
            except LabError as error:
                print(error, file=sys.stderr, flush=True)
    return path


def _write(target: Folder | Bucket, path: Path, stuck: float, every: float) -> None:
    with explained("read the files of the class", target):
        learners, refused = read(target)
    try:
        atomic_write(path, _page(learners, refused, stuck, every))
    except OSError as error:
        raise LabError(f"write the board {path}", str(error), "name a file that you can write to") from error


def _page(learners: list[Learner], refused: list[tuple[str, str]], stuck: float, every: float) -> str:
    from jinja2 import Environment, PackageLoader

    late = [one for one in learners if stuck < one.there and one.seen < _AWAY]
    script = f"setTimeout(() => location.reload(), {1000 * every:.0f})"
    template = Environment(autoescape=True, loader=PackageLoader("course.classroom", "."), trim_blocks=True)
    return template.get_template("board.html.j2").render(
        learners=learners,
        refused=refused,
        late=sorted(late, key=lambda one: -one.there),
        broken=[one for one in learners if one.doctor],
        exercises=_exercises(learners),
        solved=Counter(id for one in learners for id in set(one.solved)),
        minutes=list(_minutes(learners)),
        figures=[
            ("Rows per second", list(_spread(learners, "rows/s", ",.0f"))),
            ("Speed-up over one worker", list(_spread(learners, "speed-up", ".2f"))),
        ],
        now=time.strftime("%H:%M:%S"),
        stuck=stuck,
        every=every,
        script=script,
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _exercises(learners: list[Learner]) -> list[str]:
    """The exercises of the lessons that anybody has begun."""
    ids = (id for one in learners for id in (*one.solved, *one.hints, *one.minutes, *one.predictions))
    begun = set(map(plan.lesson_of, ids))
    return [id for id in plan.read().exercises if plan.lesson_of(id) in begun]


def _minutes(learners: list[Learner]) -> Iterator[tuple[str, float, float, int]]:
    """Yield section, median, longest and learners of each section that anybody was in."""
    for section in plan.read().sections:
        if found := [one.minutes[section] for one in learners if section in one.minutes]:
            yield section, statistics.median(found), max(found), len(found)


def _spread(learners: list[Learner], what: str, form: str) -> Iterator[dict]:
    """A figure of the runs that most learners have: least, median, most, and each learner's on an axis."""
    names = Counter(name for one in learners for name, figures in one.runs.items() if what in figures)
    for name, count in sorted(names.most_common(_RUNS)):
        found = [(one.runs[name][what], one.name) for one in learners if what in one.runs.get(name, {})]
        values = [value for value, _ in found]
        shown = [format(one, form) for one in (min(values), statistics.median(values), max(values))]
        places = [(290 * value / (max(values) or 1), f"{who}: {value:{form}}") for value, who in found]
        yield {"name": name, "learners": count, "shown": shown, "places": places}
