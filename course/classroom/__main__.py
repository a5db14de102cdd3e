"""``python -m course.classroom join | ask | leave | show | board | results | grade``."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from course.classroom import grading, page, results, sharing
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
        prog="python -m course.classroom",
        description="What a class and its teacher use.",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    place = "a folder, or the address of a bucket: https://host:9000/bucket"

    def add(run: Callable[..., None]) -> argparse.ArgumentParser:
        command = commands.add_parser(
            run.__name__.removeprefix("_"),
            help=run.__doc__,
            description=run.__doc__,
        )
        command.set_defaults(run=run)
        return command

    join = add(_join)
    join.add_argument("place", help=place)
    join.add_argument("--as", dest="nickname", required=True, help="the name that the class sees")
    add(_ask).add_argument("--done", action="store_true", help="you need no help any more")
    add(_leave)
    add(_show)
    board = add(_board)
    board.add_argument("place", help=place)
    board.add_argument("--output", default="board.html", help="default: board.html")
    board.add_argument("--stuck", type=float, default=10, help="minutes in a section; default: 10")
    board.add_argument("--every", type=float, default=5, help="seconds between two pages; default: 5")
    board.add_argument("--once", action="store_true", help="write the page once, and end")
    add(_results).add_argument("folder", type=Path, help="with NAME.json or NAME/exercises.json")
    add(_grade).add_argument("folder", type=Path, help="of the course")
    commands.add_parser("share").set_defaults(run=sharing.share)  # a kernel starts it
    return parser


def _join(place: str, nickname: str) -> None:
    """Share your progress with a class from now on, under a nickname."""
    print(sharing.join(place, nickname))


def _ask(done: bool) -> None:
    """Ask for help on the teacher's board."""
    sharing.ask(done=done)
    print("the board shows no request of yours" if done else "the board shows that you ask for help")


def _leave() -> None:
    """Share nothing any more, and delete what is shared."""
    if sharing.leave():
        print("you have left the class, and your file is gone")
    else:
        print("you are in no class")


def _show() -> None:
    """Print exactly what is shared with the class."""
    print(sharing.show())


def _board(place: str, output: str, **options: Any) -> None:
    """Write a page about all learners of the class, and update it."""
    page.board(place, output, **options)


def _results(folder: Path) -> None:
    """Print a table (CSV) of what a class has solved, from collected exercises.json files."""
    results.write(folder, sys.stdout)


def _grade(folder: Path) -> None:
    """Write the lessons as assignments for nbgrader."""
    for path in grading.write(folder):
        print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
