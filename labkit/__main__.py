"""The command line: ``python -m labkit check``, and in a checkout ``doctor | stop | clean | home``."""

import argparse
import io
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
        return options.run(options)
    except LabError as error:
        print(error, file=sys.stderr)
        return 2


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
    if add_local_commands is not None:
        add_local_commands(add)
    return parser


def check(options: argparse.Namespace) -> int:
    """Check whether this machine can train on a cluster that runs elsewhere: what it has, what it reaches."""
    from labkit.check import check

    return check(options.address, token_file=options.token_file).say(as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
