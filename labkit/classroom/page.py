"""The board of a class: one HTML page about everybody who has joined, written again every few seconds.

    $ python -m labkit class board /mnt/class

Texts are escaped, and the content security policy of the page lets no script run but the one that reloads it.
"""

import base64
import hashlib
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from markupsafe import Markup

from labkit.classroom import plan
from labkit.classroom.learner import Learner, read
from labkit.classroom.place import Bucket, Folder, explained, keys_file, open_place
from labkit.display import cards, formatting, svg
from labkit.display.style import STYLE
from labkit.errors import LabError
from labkit.files import atomic_write

_AWAY = 60  # minutes without a sign of life: not stuck, but away
_RUNS = 40  # names of runs that are shown, those of most learners first
_STYLE = """<style>
:root{--jp-content-font-color2:#555;--jp-warn-color0:#8a5200;--jp-error-color1:#b3261e}
@media(prefers-color-scheme:dark){:root{--jp-content-font-color2:#b5b5b5;--jp-warn-color0:#f0b95a;
--jp-error-color1:#ff9a90;--jp-brand-color1:#8ab8f0}}
body,.labkit{max-width:none!important}body{background:Canvas;color:CanvasText}
h2{margin:1.6rem 0 .4rem;font-size:1.2rem}
.wide{overflow-x:auto}.wide table{display:table;width:auto!important}.wide svg{width:300px!important}
.wide td,.wide th{padding-right:20px!important;white-space:nowrap}
.wide.heat td,.wide.heat th{padding:2px!important}
.wide.heat td:first-child,.wide.heat td:nth-last-child(2){padding-right:12px!important}
.heat i{display:block;min-width:2.2rem;min-height:1.4em;text-align:center;font-style:normal;border-radius:3px;
background:#8882}
.heat .solved{background:#1b6e3c;color:#fff}.heat .hinted{background:#a9dcb9;color:#10301c}
.heat .asked{background:#f2c14e;color:#3a2800}
</style>"""


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
    target, path = open_place(place, keys_file()), Path(path).absolute()
    try:
        _write(target, path, stuck, every)
        print(f"open {path} in a browser" + ("" if once else "; Ctrl-C ends the board"), flush=True)
        while not once:
            time.sleep(every)
            try:
                _write(target, path, stuck, every)
            except LabError as error:
                print(error, file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        pass
    return path


def _write(target: Folder | Bucket, path: Path, stuck: float, every: float) -> None:
    with explained("read the files of the class", target):
        learners, refused = read(target)
    try:
        atomic_write(path, _page(learners, refused, stuck, every))
    except OSError as error:
        raise LabError(f"write the board {path}", str(error), "name a file that you can write to") from error


def _page(learners: list[Learner], refused: list[tuple[str, str]], stuck: float, every: float) -> str:
    late = sorted((one for one in learners if stuck < _there(one) and one.seen < _AWAY), key=_there)
    slow = [
        (one.name, one.section["name"], f"{_there(one):.0f} min", f"{one.seen:.0f} min ago")
        for one in reversed(late)
    ]
    broken = [(one.name, ", ".join(one.doctor)) for one in learners if one.doctor]
    script = f"setTimeout(() => location.reload(), {1000 * every:.0f})"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    meta = Markup('<meta http-equiv="Content-Security-Policy" content="{}">').format(policy)
    now = f"{time.strftime('%H:%M:%S')} · {formatting.plural(len(learners), 'learner')}"
    return cards.page(
        "The class",
        Markup("<p>{} · renewed every {:g} s</p>").format(now, every),
        _part(f"In one section for more than {stuck:g} minutes", ("", "section", "there for", "seen"), slow),
        _heat(learners),
        _part("Minutes in a section", _MINUTES, _minutes(learners)),
        _part("Rows per second", _SPREAD, _spread(learners, "rows/s", formatting.count)),
        _part("Speed-up over one worker", _SPREAD, _spread(learners, "speed-up", lambda one: f"{one:.2f}")),
        _part("What the doctor would fix", ("", "topics"), broken),
        _part("Files that are not read", ("file", "why"), refused),
        head=meta + Markup(STYLE + _STYLE + f"<script>{script}</script>"),
    )


def _there(one: Learner) -> float:
    """Minutes in the present section: up to the last cell, and since then."""
    return one.section["minutes"] + one.seen if one.section["name"] else 0.0


def _part(
    title: str, head: tuple[str, ...], rows: Iterable[Iterable[str]], kind: str = "", note: str = ""
) -> Markup:
    """A section of the page; on a narrow screen its table scrolls, also by the keyboard."""
    rows = [tuple(row) for row in rows]
    table = cards.table(head, rows) if rows else Markup("<p>–</p>")
    return Markup(
        '<h2>{0}</h2>{1}<div class="labkit wide {2}" role="region" aria-label="{0}" tabindex="0">{3}</div>'
    ).format(title, Markup("<p>{}</p>").format(note) if note else "", kind, table)


def _heat(learners: list[Learner]) -> Markup:
    """Everybody's exercises, of the lessons that anybody has begun."""
    begun = {id[:2] for one in learners for id in (*one.solved, *one.hints, *one.minutes, *one.predictions)}
    ids = [id for id in plan.read().exercises if id[:2] in begun]
    rows = []
    for one in learners:
        right = f"{list(one.predictions.values()).count('right')} of {len(one.predictions)}"
        rows.append(
            (one.name, *(_cell(id in one.solved, one.hints.get(id, 0)) for id in ids), right, _seen(one))
        )
    if rows:
        solved = Counter(id for one in learners for id in set(one.solved))
        rows.append(("solved by", *(f"{solved[id]}" for id in ids), "", ""))
    note = "✓ solved, with the number of hints that were asked for; a number alone: hints, and not solved yet"
    return _part("Exercises", ("", *ids, "predicted", "seen"), rows, "heat", note)


def _cell(solved: bool, hints: float) -> Markup:
    kind = ("hinted" if hints else "solved") if solved else ("asked" if hints else "")
    return Markup('<i class="{}">{}{}</i>').format(kind, "✓" * solved, f"{hints:.0f}" if hints else "")


def _seen(one: Learner) -> Markup:
    words = "now" if one.seen < 1 else f"{one.seen:.0f} min ago"
    return Markup('<time datetime="{}">{}</time>').format(one.at, words)


_MINUTES = ("section", "plan", "median", "longest", "learners")


def _minutes(learners: list[Learner]) -> Iterable[tuple[str, ...]]:
    """Sections that anybody was in; a median is marked if it is more than a minute above the plan."""
    for section, planned in plan.read().minutes.items():
        if found := [one.minutes[section] for one in learners if section in one.minutes]:
            middle = statistics.median(found)
            late = middle > planned + 1
            words = cards.mark("wait", f"{middle:.1f}, over the plan") if late else f"{middle:.1f}"
            yield section, f"{planned:.1f}", words, f"{max(found):.1f}", str(len(found))


_SPREAD = ("run", "learners", "least", "median", "most", "everybody, from zero")


def _spread(learners: list[Learner], what: str, shown: Callable[[float], str]) -> Iterable[tuple[str, ...]]:
    """A figure of the runs that most learners have: one mark for each learner."""
    names = Counter(name for one in learners for name, figures in one.runs.items() if what in figures)
    for name, count in sorted(names.most_common(_RUNS)):
        found = [(one.runs[name][what], one.name) for one in learners if what in one.runs.get(name, {})]
        values = sorted(value for value, _ in found)
        axis = svg.Axis(0, values[-1], 2, 298)
        marks = (
            svg.bar(axis(value) - 1.5, 2, 3, 12, svg.MAIN, f"{who}: {shown(value)}", opacity=0.6)
            for value, who in found
        )
        label = f"{name}: from {shown(values[0])} to {shown(values[-1])}"
        middle = statistics.median(values)
        yield name, str(count), *map(shown, (values[0], middle, values[-1])), svg.svg(300, 16, label, *marks)
