"""What a look at a machine or a cluster found: lines with ``[OK]``, or ``[FIX]`` and what fixes it."""

import json
from dataclasses import asdict, dataclass

from markupsafe import Markup

from labkit.display import cards
from labkit.display.formatting import plural


@dataclass(frozen=True)
class Finding:
    """One thing that the doctor looked at."""

    topic: str
    ok: bool
    text: str  # the fact, with its numbers
    fix: str = ""  # the command or the step that makes it ok
    blocking: bool = False  # whether a lesson cannot run until it is fixed

    def __str__(self) -> str:
        line = f"[{'OK' if self.ok else 'FIX'}]".ljust(6) + f"{self.topic}: {self.text}"
        return line if self.ok else f"{line}\n      {self.fix}"


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """All findings; prints as lines, and displays itself as a table in a notebook."""

    findings: tuple[Finding, ...]
    good: str = "All lessons can run here"
    bad: str = "Some lessons cannot run here yet"

    @property
    def ok(self) -> bool:
        """Whether nothing that blocks was found."""
        return all(finding.ok or not finding.blocking for finding in self.findings)

    @property
    def verdict(self) -> str:
        """The diagnosis in one sentence."""
        if not self.ok:
            return f"{self.bad}: fix the lines with [FIX]."
        to_fix = sum(not finding.ok for finding in self.findings)
        if to_fix:
            return f"{self.good}; {plural(to_fix, 'line')} could be better."
        return f"{self.good}."

    def say(self, *, as_json: bool = False) -> int:
        """Print it, and return the exit status: 0 if nothing blocks.

        As JSON it is one object: ``ok`` and ``findings``, each with the fields of a `Finding`.
        """
        text = repr(self)
        if as_json:
            findings = [asdict(finding) for finding in self.findings]
            text = json.dumps({"ok": self.ok, "findings": findings}, indent=1)
        print(text)
        return 0 if self.ok else 1

    def __repr__(self) -> str:
        return "\n".join([*map(str, self.findings), self.verdict])

    def _repr_html_(self) -> str:
        rows = []
        for finding in self.findings:
            if finding.ok:
                rows.append((("ok", "[OK]"), finding.topic, finding.text))
            else:
                text = Markup("{}<br><code>{}</code>").format(finding.text, finding.fix)
                rows.append((("bad", "[FIX]"), finding.topic, text))
        kind = "bad"
        if self.ok:
            kind = "ok" if all(finding.ok for finding in self.findings) else "wait"
        table = cards.table(("", "topic", "found"), rows)
        return str(cards.card("Doctor", (kind, self.verdict), cards.rule(table)))
