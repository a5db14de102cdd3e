"""What a look at the machine found: lines in a shell, a table in a notebook."""

from dataclasses import dataclass

from markupsafe import Markup

from labkit.display import cards


@dataclass(frozen=True)
class Finding:
    """One thing that the doctor looked at.

    Attributes:
        topic: what was looked at.
        ok: whether all is well.
        text: the fact, with its numbers.
        fix: if not: the command or the step that fixes it.
        blocking: whether a lesson cannot run until this is fixed.
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
        """Whether every lesson can run; findings that merely could be better do not count."""
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
            return "Some lessons cannot run here yet: fix what is marked [FIX]."
        if todo:
            return f"All lessons can run here; {todo} line{'s' if todo > 1 else ''} could be better."
        return "All lessons can run here."

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), self.verdict])

    def _repr_html_(self) -> str:
        kind = "ok" if all(finding.ok for finding in self.findings) else "wait" if self.ok else "bad"
        table = cards.table(("", "topic", "found"), map(_row, self.findings))
        return str(cards.card("Doctor", (kind, self.verdict), cards.rule(table)))


def _row(finding: Finding) -> tuple[str, str, str]:
    mark = cards.mark("ok", "[OK]") if finding.ok else cards.mark("bad", "[FIX]")
    fix = cards.NOTHING if finding.ok else Markup("<br><code>{}</code>").format(finding.fix)
    return mark, finding.topic, Markup("{}{}").format(finding.text, fix)
