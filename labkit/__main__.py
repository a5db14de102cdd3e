"""The lab's command line: ``python -m labkit doctor | check | stop | clean | home``."""

import argparse
import io
import re
import shlex
import shutil
import sys
from collections import Counter

import labkit
from labkit.display.formatting import plural, size
from labkit.errors import LabError
from labkit.runs.cleaning import old_folders
from labkit.settings import Settings
from labkit.local import family, supervision
from labkit.local.doctor import doctor
from labkit.local.doctor import Diagnosis


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
    command = {}
    for run in (_doctor, _check, _stop, _clean, _home):
        name = run.__name__.strip("_")
        command[name] = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        command[name].set_defaults(run=run)
    for name in ("doctor", "check"):
        command[name].add_argument("--json", action="store_true", help="for programs")
    command["check"].add_argument("address", metavar="ADDRESS", help="host:port of its head")
    command["check"].add_argument("--token-file", help="default: where Ray looks for a token")
    age = "for how long nothing was written into it, as in 7d or 12h; default: 7d"
    command["clean"].add_argument("--older", metavar="AGE", type=_seconds, default="7d", help=age)
    command["clean"].add_argument("--yes", action="store_true", help="remove it without a question")
    return parser


def _doctor(options: argparse.Namespace) -> int:
    """Check whether the lessons can run here, and print how to fix what is wrong."""
    return _say(doctor(), options)


def _check(options: argparse.Namespace) -> int:
    """Check whether this machine can train on a cluster that runs elsewhere: what it has, what it reaches."""
    from labkit.check import check

    return _say(check(options.address, token_file=options.token_file), options)


def _say(diagnosis: Diagnosis, options: argparse.Namespace) -> int:
    print(diagnosis.as_json() if options.json else diagnosis)
    return 0 if diagnosis.ok else 1


def _stop(_: argparse.Namespace) -> int:
    """Stop the processes that this lab has started on this machine, and no others."""
    home = Settings.from_env().home
    in_use = any(supervision.users(home).values())
    stopped = supervision.stop(home)
    for process in stopped:
        print(f"stopped {process}")
    if not stopped:
        print(f"nothing of the lab in {home} is running here")
        for other in family.other_homes(home):
            stop = f"LABKIT_HOME={shlex.quote(str(other))} {shlex.quote(sys.executable)} -m labkit stop"
            print(f"the lab in {other} is running; to stop that one: {stop}")
    if in_use:  # Ray ends a process a minute after it has lost its head node, and its variables are lost
        print("a notebook was using it: restart its kernel now, or Ray ends the kernel within a minute")
    return 0


def _seconds(age: str) -> float:
    if not (found := re.fullmatch(r"(\d+)([dh])", age)):
        raise argparse.ArgumentTypeError(f"{age!r} is no age such as 7d or 12h")
    return int(found[1]) * {"d": 86_400, "h": 3600}[found[2]]


def _clean(options: argparse.Namespace) -> int:
    """Show old runs with their checkpoints and old sessions of Ray and Spark; remove them if you agree."""
    home = Settings.from_env().home
    if family.groups(home):
        fact = "processes of this lab are running, and may use what looks old"
        raise LabError(f"clean {home}", fact, "python -m labkit stop, then clean again")
    found = old_folders(home, options.older)
    if not found:
        print(f"nothing old is under {home}")
        return 0
    for parent, number in sorted(Counter(path.parent for path in found).items()):
        print(f"{plural(number, 'folder')} in {parent}")
    print(f"{plural(len(found), 'folder')} with {size(sum(found.values()))} in all")
    if not options.yes:
        print("remove all of it? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("nothing was removed")
            return 0
    failed = 0
    for path in found:
        try:
            shutil.rmtree(path)
        except OSError as error:
            failed += 1
            print(f"could not remove {path}: {error.strerror}", file=sys.stderr)
    print(f"removed {len(found) - failed} of {len(found)}")
    return int(bool(failed))


def _home(_: argparse.Namespace) -> int:
    """Print the folder where this lab keeps its runs, logs and objects."""
    print(Settings.from_env().home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
