"""A table of what a class has solved, from collected ``exercises.json`` files: CSV on standard output.

    python tools/results.py COLLECTED > results.csv

`python -m labkit home` prints the folder that has a learner's file. COLLECTED has one file for each learner,
``anna.json`` or ``anna/exercises.json``. Each gets a row: 1 for a solved exercise, 0 for an open one, and how
many of the predictions were right. A file that cannot be read gets a row that says why, and nothing counted.
The files are the learners' own, so this is a record of work and no proof of it.
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any

from labkit.exercises import registry

_LARGEST = 1_000_000  # bytes; all exercises and predictions take 20 kB


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]) if len(arguments) == 1 else None
    files = sorted([*folder.glob("*.json"), *folder.glob("*/exercises.json")]) if folder else []
    if not files:
        where = f"{folder} has no NAME.json and no NAME/exercises.json" if folder else "a folder is expected"
        print(f"could not read results: {where}", file=sys.stderr)
        print("  fix: python tools/results.py COLLECTED > results.csv", file=sys.stderr)
        return 2
    ids = [one.id for lesson in registry.lessons() for one in lesson.exercises]
    columns = ["learner", *ids, "solved", "predictions", "right", "problem"]
    writer = csv.DictWriter(sys.stdout, columns, restval=0, lineterminator="\n")
    writer.writeheader()
    for path in files:
        found = _row(path, set(ids))
        writer.writerow(found)
        if found["problem"]:
            print(f"{path}: {found['problem']}", file=sys.stderr)
    return 0


def _row(path: Path, ids: set[str]) -> dict[str, Any]:
    """The row of one learner; with a problem, nothing is counted."""
    name = path.parent.name if path.name == "exercises.json" else path.stem
    if not name.isprintable() or name.startswith(("=", "+", "-", "@")):
        name = f"'{name!r}"  # a spreadsheet would take it for a formula
    try:
        solved, predictions = _read(path)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return {"learner": name, "problem": reason.partition("\n")[0][:120]}
    known = solved.keys() & ids
    return {
        "learner": name,
        **dict.fromkeys(known, 1),
        "solved": len(known),
        "predictions": len(predictions),
        "right": sum(one.get("verdict") == "right" for one in predictions.values()),
        "problem": f"unknown exercises: {len(solved) - len(known)}" if len(solved) > len(known) else "",
    }


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is solved and what was predicted, by id.

    Raises:
        OSError, ValueError, RecursionError: it isn't a file of exercises; the text says why.
    """
    if path.is_symlink() or not path.is_file():
        raise ValueError("not a plain file")
    if (size := path.stat().st_size) > _LARGEST:
        raise ValueError(f"{size:,} bytes, and at most {_LARGEST:,} are read")
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.get("format") != 1:
        raise ValueError("not an exercises.json of this lab")
    sections = [content.get(name, {}) for name in ("solved", "predictions")]
    values = list(sections[1].values()) if isinstance(sections[1], dict) else [None]
    if not isinstance(sections[0], dict) or not all(isinstance(one, dict) for one in values):
        raise ValueError("its sections are not what this lab writes")
    return sections[0], sections[1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
