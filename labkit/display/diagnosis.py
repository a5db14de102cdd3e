"""What a look at the machine found: lines in a shell, a table in a notebook."""

from dataclasses import dataclass
from html import escape

# JupyterLab's own colours, so that every theme works; elsewhere the text keeps the page's colour.
_LEFT = 'style="text-align: left; padding: 2px 12px 2px 0; vertical-align: top"'
_COLOURS = {True: "var(--jp-success-color1, inherit)", False: "var(--jp-error-color1, inherit)"}


@dataclass(frozen=True)
class Finding:
    """One thing that the doctor looked at.

    Attributes:
        topic: what was looked at.
        ok: whether all is well.
        text: the fact, with its numbers.
        fix: if not: the command or the step that mends it.
        blocking: whether a lesson could not run as long as it is not mended.
    """

    topic: str
    ok: bool
    text: str
    fix: str = ""
    blocking: bool = False

    def __str__(self) -> str:
        line = f"[{'OK' if self.ok else 'FIX'}]".ljust(6) + f"{self.topic}: {self.text}"
        return line if self.ok else f"{line}\n      {self.fix}"


@dataclass(frozen=True)
class Diagnosis:
    """All findings; prints as lines, and displays itself as a table in a notebook."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether every lesson can run; what is merely worth mending does not count."""
        return not any(finding.blocking for finding in self.findings if not finding.ok)

    @property
    def exit_code(self) -> int:
        """0 if every lesson can run, else 1."""
        return 0 if self.ok else 1

    @property
    def verdict(self) -> str:
        """The diagnosis in one sentence."""
        todo = sum(not finding.ok for finding in self.findings)
        if not self.ok:
            return "Some lessons cannot run here yet: mend what says [FIX]."
        if todo:
            return f"All lessons can run here; {todo} line{'s' if todo > 1 else ''} could be better."
        return "All lessons can run here."

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), self.verdict])

    def _repr_html_(self) -> str:
        rows = "".join(map(_row, self.findings))
        return (
            '<table style="border-collapse: collapse; font-variant-numeric: tabular-nums">'
            f"<caption {_LEFT}>{escape(self.verdict)}</caption><tbody>{rows}</tbody></table>"
        )


def _row(finding: Finding) -> str:
    word = "OK" if finding.ok else "FIX"
    fix = "" if finding.ok else f"<br><code>{escape(finding.fix)}</code>"
    return (
        f'<tr><td {_LEFT}><strong style="color: {_COLOURS[finding.ok]}">[{word}]</strong></td>'
        f"<th {_LEFT} scope='row'>{escape(finding.topic)}</th>"
        f"<td {_LEFT}>{escape(finding.text)}{fix}</td></tr>"
    )
