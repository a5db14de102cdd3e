"""The board of a class: one HTML page about all who have joined, written again every few seconds.

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
from collections import Counter, defaultdict
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
    place: str,
    path: Path | str = "board.html",
    *,
    stuck: float = 10,
    every: float = 5,
    once: bool = False,
) -> Path:
    """Write the board of the class in `place` to `path`, and update it until it is interrupted.

    Args:
        stuck: minutes in the same section after which a learner is listed as stuck.
        every: seconds from one page to the next.
        once: do not update it.

    Raises:
        LabError: the place cannot be read, or the page cannot be written, at the first try. A later one is
            printed, and the board goes on.
    """
    target = open_place(place)
    path = Path(path).absolute()
    _write(target, path, stuck, every)
    how_to_end = "" if once else "; Ctrl-C ends the board"
    print(f"open {path} in a browser{how_to_end}", flush=True)
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
        raise LabError(
            f"write the board {path}",
            str(error),
            "name a file that you can write to",
        ) from error


def _page(learners: list[Learner], refused: list[tuple[str, str]], stuck: float, every: float) -> str:
    from jinja2 import Environment, PackageLoader

    late = [learner for learner in learners if stuck < learner.there and learner.seen < _AWAY]
    script = f"setTimeout(() => location.reload(), {1000 * every:.0f})"
    digest = hashlib.sha256(script.encode()).digest()
    templates = Environment(
        autoescape=True,
        loader=PackageLoader("course.classroom", "."),
        trim_blocks=True,
    )
    return templates.get_template("board.html.j2").render(
        learners=learners,
        refused=refused,
        late=sorted(late, key=lambda learner: -learner.there),
        broken=[learner for learner in learners if learner.doctor],
        exercises=_exercises(learners),
        solved=Counter(id for learner in learners for id in set(learner.solved)),
        minutes=list(_minutes(learners)),
        rates=list(_rates(learners)),
        now=time.strftime("%H:%M:%S"),
        stuck=stuck,
        every=every,
        script=script,
        digest=base64.b64encode(digest).decode(),
    )


def _exercises(learners: list[Learner]) -> list[str]:
    """List the exercises of the lessons that any learner has begun."""
    begun: set[str] = set()
    for learner in learners:
        ids = [*learner.solved, *learner.hints, *learner.minutes, *learner.predictions]
        begun.update(map(plan.lesson_of, ids))
    return [id for id in plan.read().exercises if plan.lesson_of(id) in begun]


def _minutes(learners: list[Learner]) -> Iterator[tuple[str, float, float, int]]:
    """Yield section, median, longest and learners of each section that any learner was in."""
    for section in plan.read().sections:
        minutes = [learner.minutes[section] for learner in learners if section in learner.minutes]
        if minutes:
            median = statistics.median(minutes)
            yield section, median, max(minutes), len(minutes)


def _rates(learners: list[Learner]) -> Iterator[dict]:
    """Yield rows/s of the runs that most learners have: least, median, most, and each learner's place."""
    by_run = defaultdict(list)  # (rate, learner's name) by the run's name
    for learner in learners:
        for run, figures in learner.runs.items():
            if "rows/s" in figures:
                by_run[run].append((figures["rows/s"], learner.name))
    most_common = sorted(by_run, key=lambda run: -len(by_run[run]))
    for run in sorted(most_common[:_RUNS]):
        rates = [rate for rate, _ in by_run[run]]
        highest = max(rates)
        places = []
        for rate, name in by_run[run]:
            x = 290 * rate / (highest or 1)
            places.append((x, f"{name}: {rate:,.0f}"))
        spread = (min(rates), statistics.median(rates), highest)
        yield {
            "name": run,
            "learners": len(rates),
            "shown": [f"{rate:,.0f}" for rate in spread],
            "places": places,
        }
