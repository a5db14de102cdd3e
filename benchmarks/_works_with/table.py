"""The rows, and what is asked of them."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "rows"

# What is asked of a row, with the column's head on the page.
FACTS = {
    "one model": "all ranks end with the same weights",
    "one process": "they are the weights of plain PyTorch in one process, with the same batches",
    "rows": "the panel counts the rows of each rank",
    "steps": "it counts the optimizer's steps",
    "epochs": "it and the record count the epochs",
    "loss": "the record's loss of each epoch is the loop's, and the panel follows it",
    "resumes": "a second `fit()` of the same name goes on from the checkpoint, and ends with the weights of "
    "a run that was not interrupted; in Ray Tune, `Tuner.restore` runs what a stopped sweep has left",
    "trials": "the panel counts the trials",
    "best": "its best trial is Tune's",
    "stop": "a rank is killed, the error and the panel name it, the run goes on, and Stop ends it",
}


@dataclass(frozen=True)
class Row:
    """What the docstring of a module in `rows` says."""

    key: str  # the module's name
    name: str
    group: str
    asked: tuple[str, ...]  # the facts that make sense here
    packages: tuple[str, ...] = ()  # whose versions matter
    line: str = ""  # what has to be written
    note: str = ""


def rows() -> list[Row]:
    """All rows, by group and in the order of `GROUPS`."""
    found = [read(path) for path in sorted(FOLDER.glob("*.py")) if path.stem != "__init__"]
    return sorted(found, key=lambda row: (GROUPS.index(row.group), row.key))


GROUPS = (
    "Trainers in a TorchTrainer",
    "PyTorch in a TorchTrainer",
    "Loaders in a TorchTrainer",
    "Other trainers of Ray Train",
    "Searchers and schedulers of Ray Tune",
    "In TorchDistributor",
    "Trackers by `live=`",
)


def read(path: Path) -> Row:
    """Read the docstring of one row: its name, then `Field: value` with continued lines indented."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    name, _, rest = text.partition("\n")
    fields = {key.lower(): " ".join(value.split()) for key, value in _FIELD.findall(rest)}
    return Row(
        key=path.stem,
        name=name.rstrip("."),
        group=fields["group"],
        asked=_asked(fields.get("asked", "all")),
        packages=tuple(re.split(r",\s*", fields["packages"])),
        line=fields.get("line", ""),
        note=fields.get("note", ""),
    )


_FIELD = re.compile(r"^(\w+): (.*(?:\n[ \t]+.*)*)", re.MULTILINE)


def _asked(text: str) -> tuple[str, ...]:
    """Return the facts that a field names: `a, b`, or of those of trainers `all` or `all but a, b`."""
    names = re.split(r",\s*", text.removeprefix("all but "))
    if text.startswith("all"):
        names = [fact for fact in FACTS if fact not in (*names, "trials", "best")]
    assert set(names) <= set(FACTS), f"{names} are not all facts"
    return tuple(fact for fact in FACTS if fact in names)
