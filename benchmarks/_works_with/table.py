"""The rows, what was guessed of them, and the page with what was seen."""

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
    guessed: frozenset[str]  # those that were expected to hold, before the first run
    missed: frozenset[str] = frozenset()  # guesses that missed before the row was corrected
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
    of_trainers = tuple(fact for fact in FACTS if fact not in ("trials", "best"))
    asked = _listed(fields.get("asked", "all"), of_trainers)
    return Row(
        key=path.stem,
        name=name.rstrip("."),
        group=fields["group"],
        asked=asked,
        guessed=frozenset(_listed(fields["guess"], asked)),
        missed=frozenset(_listed(fields.get("missed", "none"), asked)),
        packages=tuple(re.split(r",\s*", fields["packages"])),
        line=fields.get("line", ""),
        note=fields.get("note", ""),
    )


_FIELD = re.compile(r"^(\w+): (.*(?:\n[ \t]+.*)*)", re.MULTILINE)


def _listed(text: str, of: tuple[str, ...]) -> tuple[str, ...]:
    """Return the facts that a field names: `all`, `none`, `all but a, b` or `a, b`."""
    if text == "none":
        return ()
    names = re.split(r",\s*", text.removeprefix("all but ")) if text != "all" else []
    assert set(names) <= set(FACTS), f"{names} are not all facts"
    if text == "all" or text.startswith("all but "):
        return tuple(fact for fact in of if fact not in names)
    return tuple(fact for fact in FACTS if fact in names)
