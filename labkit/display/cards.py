"""Cards, tables and their parts as HTML: the same look for panels, handles and lists.

    >>> card("Object store", "running", text("2 buckets"), dim="http://127.0.0.1:9000")

Everything that is not `Markup` already is escaped. The style sheet is part of each card and not of a kernel
or a notebook: cells are run again, deleted and copied one by one, and an export has outputs but no kernel.
"""

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from labkit.display.style import STYLE

NOTHING = Markup()

_STATUS = {
    "running": ("dim", "running"),
    "finished": ("ok", "finished"),
    "failed": ("bad", "failed"),
    "stopped": ("wait", "stopped"),
}


def card(title: str, status: str | tuple[str, str], *parts: str, dim: str = "") -> Markup:
    """A card that stands alone.

    Args:
        title, dim: the left of its head, and the text after the status.
        status: "running", "finished", "failed", "stopped", or (kind, words) with a kind of `mark`.
        parts: the sections below the head.
    """
    kind, words = _STATUS[status] if isinstance(status, str) else status
    return frame(head(title, mark(kind, words), mark("dim", dim)), *parts)


def frame(*parts: str) -> Markup:
    """A card without a head."""
    return Markup('{}<div class="labkit lk-card">{}</div>').format(Markup(STYLE), join(parts))


def figure(words: str, svg: str) -> Markup:
    """A figure that stands alone, with a line of text above it."""
    return Markup('{}<div class="labkit lk-text">{}{}</div>').format(Markup(STYLE), words, svg)


def part(*parts: str) -> Markup:
    """A piece of a card without frame and style sheet, for a widget that brings both."""
    return Markup('<div class="labkit">{}</div>').format(join(parts))


def head(title: str, *parts: str) -> Markup:
    """The first line of a card."""
    return Markup('<div class="lk-head"><b>{}</b>{}</div>').format(title, join(parts))


def mark(kind: str, words: str) -> Markup:
    """Words in a colour: "ok", "bad", "wait", "dim", or "now" (bold). Choose words that need no colour."""
    return Markup('<span class="lk-{}">{}</span>').format(kind, words) if words else NOTHING


def join(parts: Iterable[str]) -> Markup:
    """The parts one after the other."""
    return NOTHING.join(parts)


def rule(*parts: str) -> Markup:
    """A section of a card, below a line."""
    return Markup('<div class="lk-rule lk-pad">{}</div>').format(join(parts)) if any(parts) else NOTHING


def text(words: str) -> Markup:
    """A section with a line of text."""
    return Markup('<div class="lk-rule lk-text">{}</div>').format(words)


def pre(words: str) -> Markup:
    """A section with lines as they were printed."""
    return Markup('<pre class="lk-rule">{}</pre>').format(words)


def fold(words: str, *parts: str) -> Markup:
    """A section that a click on `words` opens."""
    return Markup('<details class="lk-rule lk-text"><summary>{}</summary>{}</details>').format(
        words, join(parts)
    )


def columns(left: str, right: str) -> Markup:
    """A section of two columns; the right one is as wide as a figure."""
    return Markup('<div class="lk-rule lk-body"><div class="lk-main">{}</div><div>{}</div></div>').format(
        left, right
    )


def steps(marks: Iterable[tuple[str, str]]) -> Markup:
    """A line of (kind, words)."""
    return Markup('<div class="lk-steps lk-num">{}</div>').format(join(mark(*one) for one in marks))


def bar(words: str, fraction: float | None) -> Markup:
    """A progress bar with a line above it; striped if the fraction is unknown."""
    kind, percent = (" lk-unknown", 100.0) if fraction is None else ("", 100 * min(max(fraction, 0.0), 1.0))
    line = Markup('<div class="lk-dim lk-num">{}</div>').format(words) if words else NOTHING
    return line + Markup('<div class="lk-bar{}"><i style="width:{:.1f}%"></i></div>').format(kind, percent)


def tiles(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Large numbers with their names below: (value, name)."""
    cells = join(Markup('<div><b>{}</b><span class="lk-dim">{}</span></div>').format(*pair) for pair in pairs)
    return Markup('<div class="lk-tiles">{}</div>').format(cells)


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, more: int = 0, widths: Sequence[int] = ()
) -> Markup:
    """A table.

    Args:
        rows: cells are escaped, unless they are `Markup` (`mark` gives a coloured one).
        more: rows that are not shown: a line below says how many.
        widths: of the columns in percent, for a live table that must not jump.
    """
    style = [Markup(' style="width:{}%"').format(width) for width in widths] or [NOTHING] * len(head)
    names = join(Markup("<th{}>{}</th>").format(*pair) for pair in zip(style, head, strict=True))
    body = join(_row(row) for row in rows)
    if more > 0:
        body += Markup('<tr><td class="lk-dim" colspan="{}">and {} more</td></tr>').format(len(head), more)
    fixed = Markup(' style="table-layout:fixed"') if widths else NOTHING
    return Markup("<table{}><tr>{}</tr>{}</table>").format(fixed, names, body)


def files(pairs: Iterable[tuple[str, str]]) -> Markup:
    """A table of (what, path)."""
    cell = Markup("<code>{}</code>")
    return Markup("<table>{}</table>").format(join(_row((what, cell.format(path))) for what, path in pairs))


def _row(cells: Sequence[str]) -> Markup:
    return Markup("<tr>{}</tr>").format(join(Markup("<td>{}</td>").format(cell) for cell in cells))
