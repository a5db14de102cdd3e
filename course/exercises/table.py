"""A table that displays itself, also in a terminal: what a reader has solved and predicted."""

from collections.abc import Sequence

from labkit.display import cards


class Table:
    """Rows of numbers and strings under a head, and a line below."""

    def __init__(
        self,
        head: Sequence[str],
        rows: Sequence[Sequence[object]],
        line: str = "",
    ) -> None:
        self.head = tuple(head)
        self.rows = [tuple(row) for row in rows]
        self.line = line

    def __repr__(self) -> str:
        rows = [self.head]
        rows += [tuple(map(str, row)) for row in self.rows]
        columns = zip(*rows, strict=True)
        widths = [max(map(len, column)) for column in columns]
        lines = []
        for row in rows:
            cells = map(str.ljust, row, widths)
            lines.append("  ".join(cells).rstrip())
        if self.line:
            lines.append(self.line)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        table = cards.rule(cards.table(self.head, self.rows))
        line = cards.text(self.line) if self.line else cards.NOTHING
        return str(cards.frame(table, line))
