"""A table that displays itself, in a terminal and in a notebook."""

from collections.abc import Sequence

from labkit.display import cards


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
        table = cards.table(self.head, [[str(cell) for cell in row] for row in self.rows])
        return str(cards.frame(cards.rule(table), cards.text(self.line) if self.line else cards.NOTHING))
