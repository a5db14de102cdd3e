"""Cards and tables as HTML: handles, lists and figures have the look of panels.

    >>> card("Object store", "running", text("2 buckets"), dim="http://127.0.0.1:9000")

Everything that is not `Markup` already is escaped. The style sheet is part of each card and not of a kernel
or a notebook: cells are run again, deleted and copied one by one, and an export has outputs but no kernel.
"""

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from labkit.display.style import STYLE

NOTHING = Markup()
Cell = str | tuple[str, str]

_STATUS = {"running": "dim", "finished": "ok", "failed": "bad", "stopped": "wait"}  # kinds of `mark`


def card(title: str, status: str | tuple[str, str], *parts: str, dim: str = "") -> Markup:
    """A card that stands alone: title, status and a dim text in its head, and `parts` below.

    Args:
        status: "running", "finished", "failed", "stopped", or (kind, words) with a kind of `mark`.
    """
    kind, words = (_STATUS[status], status) if isinstance(status, str) else status
    return frame(head(title, mark(kind, words), mark("dim", dim)), *parts)


def frame(*parts: str) -> Markup:
    """A card without a head."""
    return Markup(STYLE) + _div("labkit lk-card", *parts)


def figure(words: str, svg: str) -> Markup:
    """A figure that stands alone, with a line of text above it."""
    return Markup(STYLE) + _div("labkit lk-text", words, svg)


def part(*parts: str) -> Markup:
    """A piece of a card without frame and style sheet, for a widget that brings both."""
    return _div("labkit", *parts)


def head(title: str, *parts: str) -> Markup:
    """The first line of a card."""
    return _div("lk-head", Markup("<b>{}</b>").format(title), *parts)


def mark(kind: str, words: str) -> Markup:
    """Words in a colour: "ok", "bad", "wait", "dim", or "now" (bold). Choose words that need no colour."""
    return Markup('<span class="lk-{}">{}</span>').format(kind, words) if words else NOTHING


def said(words: str) -> Markup:
    """Words for a screen reader alone, which says them when they change."""
    return Markup('<div class="lk-said" role="status" aria-live="polite">{}</div>').format(words)


def rule(*parts: str) -> Markup:
    """A section of a card, below a line."""
    return _div("lk-rule lk-pad", *parts) if any(parts) else NOTHING


def text(words: str) -> Markup:
    """A section with a line of text."""
    return _div("lk-rule lk-text", words)


def table(
    head: Sequence[str], rows: Iterable[Sequence[Cell]], *, more: int = 0, widths: Sequence[int] = ()
) -> Markup:
    """A table.

    Args:
        rows: cells are texts, or (kind, words) as `mark` takes them.
        more: rows that are not shown: a line below says how many.
        widths: of the columns in percent, for a live table that must not jump.
    """
    cells = []
    for number, name in enumerate(head):
        style = Markup(' style="width:{}%"').format(widths[number]) if widths else NOTHING
        # A column without a name has no header: a screen reader would read out an empty one.
        cell = '<th scope="col"{}>{}</th>' if name else "<td{}>{}</td>"
        cells.append(Markup(cell).format(style, name))
    lines = [NOTHING.join(cells), *(NOTHING.join(map(_cell, row)) for row in rows)]
    if more > 0:
        lines.append(Markup('<td class="lk-dim" colspan="{}">and {} more</td>').format(len(head), more))
    fixed = Markup(' style="table-layout:fixed"') if widths else NOTHING
    rows = NOTHING.join(Markup("<tr>{}</tr>").format(line) for line in lines)
    return Markup("<table{}>{}</table>").format(fixed, rows)


def _cell(cell: Cell) -> Markup:
    return Markup("<td>{}</td>").format(mark(*cell) if isinstance(cell, tuple) else cell)


class Table:
    """Rows of numbers and strings under a head, and a line below; displays itself, also in a terminal."""

    def __init__(self, head: Sequence[str], rows: Sequence[Sequence[object]], line: str = "") -> None:
        self.head, self.rows, self.line = tuple(head), [tuple(row) for row in rows], line

    def __repr__(self) -> str:
        cells = [self.head, *([str(cell) for cell in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
        return "\n".join([*lines, self.line] if self.line else lines)

    def _repr_html_(self) -> str:
        return str(frame(rule(table(self.head, self.rows)), text(self.line) if self.line else NOTHING))


def _div(kind: str, *parts: str) -> Markup:
    return Markup('<div class="{}">{}</div>').format(kind, NOTHING.join(parts))
