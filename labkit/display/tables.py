"""A table that displays itself, in a terminal and in a notebook."""

from collections.abc import Sequence
from html import escape

from labkit.display.style import STYLE

_CELL = "padding-right:20px!important"  # columns stay apart, whatever the theme does to tables


class Table:
    """Rows under a head, and a line below.

    Attributes:
        head: names of the columns.
        rows: each as long as the head; numbers and strings.
        line: what there is to say about all rows together.
    """

    def __init__(self, head: Sequence[str], rows: Sequence[Sequence[object]], line: str = "") -> None:
        self.head, self.rows, self.line = tuple(head), [tuple(row) for row in rows], line

    def __repr__(self) -> str:
        cells = [self.head, *([str(cell) for cell in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
        return "\n".join([*lines, self.line] if self.line else lines)

    def _repr_html_(self) -> str:
        head = "".join(f'<th style="{_CELL}">{escape(name)}</th>' for name in self.head)
        cells = [[f'<td style="{_CELL}">{escape(str(value))}</td>' for value in row] for row in self.rows]
        rows = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
        line = f'<div class="lk-text lk-rule">{escape(self.line)}</div>' if self.line else ""
        return (
            f'{STYLE}<div class="labkit lk-card"><div style="padding:6px 12px 8px">'
            f'<table style="table-layout:auto;width:auto"><tr>{head}</tr>{rows}</table></div>{line}</div>'
        )
