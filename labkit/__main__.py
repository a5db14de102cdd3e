"""The command line: ``python -m labkit check | why``, and in a checkout ``doctor | stop | clean | home``."""

import argparse
import io
import os
import signal
import sys
from collections.abc import Callable

import labkit
from labkit.errors import LabError

try:  # the one place where labkit looks for labkit.local, which the wheel doesn't have
    from labkit.local.commands import add_to as add_local_commands
except ModuleNotFoundError:
    add_local_commands = None  # type: ignore[assignment]


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that is not UTF-8 shows ? for ×
        sys.stdout.reconfigure(errors="replace")
    options = _parser().parse_args(arguments)
    try:
        status = options.run(options)
        sys.stdout.flush()
    except LabError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe has read enough, as in `labkit stop | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the last flush raises again
        return 128 + signal.SIGPIPE  # as a program that a closed pipe ends
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m labkit", description=labkit.__doc__.partition("\n")[0])
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        command = commands.add_parser(run.__name__, help=run.__doc__, description=run.__doc__)
        command.set_defaults(run=run)
        return command

    command = add(check)
    command.add_argument("address", metavar="ADDRESS", help="host:port of its head")
    command.add_argument("--token-file", help="default: where Ray looks for a token")
    command.add_argument("--json", action="store_true", help="for programs")
    command = add(why)
    command.add_argument("name", metavar="RUN", help="its id, or its name: the latest with this name")
    command.add_argument("--json", action="store_true", help="for programs")
    command.add_argument("--than", metavar="RUN2", help="exit with 1 if RUN's epochs are slower than RUN2's")
    command.add_argument(
        "--percent", metavar="N", type=float, default=10, help="by more than this; default: 10"
    )
    if add_local_commands is not None:
        add_local_commands(add)
    return parser


def check(options: argparse.Namespace) -> int:
    """Check whether this machine can train on a cluster that runs elsewhere: what it has, what it reaches."""
    from labkit.check import check

    return check(options.address, token_file=options.token_file).say(as_json=options.json)


def why(options: argparse.Namespace) -> int:
    """Print why a run was slow, on which rank, and what its epochs would take without that."""
    from labkit.runs.why import why

    return why(options.name, than=options.than, percent=options.percent, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
