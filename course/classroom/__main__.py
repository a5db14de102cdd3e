"""``python -m course.classroom join | leave | show | board | results | grade``."""

import argparse
import sys
from pathlib import Path
from typing import Any

from course.classroom import grading, results, sharing
from course.classroom.page import board
from labkit.errors import LabError


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    options = vars(_parser().parse_args(arguments))
    try:
        options.pop("run")(**options)
    except LabError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m course.classroom", description="What a class and its teacher use."
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    place: dict[str, Any] = {"help": "a folder, or the address of a bucket: https://host:9000/bucket"}
    found = {}
    for run in (_join, _leave, _show, _board, _results, _grade):
        name = run.__name__.removeprefix("_")
        found[name] = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        found[name].set_defaults(run=run)
    commands.add_parser("share").set_defaults(run=sharing.share)  # labkit calls it
    found["join"].add_argument("place", **place)
    found["join"].add_argument("--as", dest="nickname", required=True, help="the name that the class sees")
    found["board"].add_argument("place", **place)
    found["board"].add_argument("--output", default="board.html", help="default: board.html")
    found["board"].add_argument("--stuck", type=float, default=10, help="minutes in a section; default: 10")
    found["board"].add_argument(
        "--every", type=float, default=5, help="seconds between two pages; default: 5"
    )
    found["board"].add_argument("--once", action="store_true", help="write the page once, and end")
    found["results"].add_argument("folder", type=Path, help="with NAME.json or NAME/exercises.json")
    found["grade"].add_argument("folder", type=Path, help="of the course")
    return parser


def _join(place: str, nickname: str) -> None:
    """Share your progress with a class from now on, under a nickname."""
    print(sharing.join(place, nickname))


def _leave() -> None:
    """Share nothing any more, and delete what is shared."""
    print("you have left the class, and your file is gone" if sharing.leave() else "you are in no class")


def _show() -> None:
    """Print exactly what is shared with the class."""
    print(sharing.show())


def _board(place: str, output: str, **options: Any) -> None:
    """Write a page about everybody in the class, and renew it."""
    board(place, output, **options)


def _results(folder: Path) -> None:
    """Print a table (CSV) of what a class has solved, from collected exercises.json files."""
    results.write(folder, sys.stdout)


def _grade(folder: Path) -> None:
    """Write the lessons as assignments for nbgrader."""
    for path in grading.write(folder):
        print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
