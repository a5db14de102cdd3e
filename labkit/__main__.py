"""The lab's command line: ``python -m labkit doctor | stop | home``."""

import argparse
import io
import sys

import labkit
from labkit.errors import LabError
from labkit.settings import Settings
from labkit.system import doctor
from labkit.system.process_registry import ProcessRegistry


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
    for name, run in (("doctor", _doctor), ("stop", _stop), ("home", _home)):
        commands.add_parser(name, help=run.__doc__, description=run.__doc__).set_defaults(run=run)
    return parser


def _doctor(_: argparse.Namespace) -> int:
    """Check whether the lessons can run here, and print how to fix what is wrong."""
    diagnosis = doctor()
    print(diagnosis)
    return 0 if diagnosis.ok else 1


def _stop(_: argparse.Namespace) -> int:
    """Stop the processes that this lab started, and no others. Their records are in LABKIT_HOME."""
    registry = ProcessRegistry(Settings.from_env().home)
    in_use = any(registry.has_owner(lab) for lab in registry.groups())
    stopped = registry.stop_all()
    for entry in stopped:
        print(f"stopped {entry.role} (process {entry.pid})")
    if in_use:
        # Ray ends a process a minute after it has lost its head node, and its variables are lost.
        print("a notebook was using it: restart its kernel now, or Ray ends the kernel within a minute")
    if not stopped:
        print("nothing of this lab is running")
    return 0


def _home(_: argparse.Namespace) -> int:
    """Print the folder where this lab keeps its runs, logs and objects."""
    print(Settings.from_env().home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
