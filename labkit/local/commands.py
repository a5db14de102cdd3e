"""The commands for this machine: ``python -m labkit doctor | stop | clean | home``."""

import argparse
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable

from labkit.display.formatting import plural, size
from labkit.errors import LabError
from labkit.local import family
from labkit.local.cleaning import old_folders
from labkit.local.doctor import doctor as diagnose
from labkit.local.lab import Lab
from labkit.settings import Settings


def add_to(add: Callable[[Callable], argparse.ArgumentParser]) -> None:
    """Add the commands to a parser; `add` makes the subparser of a function."""
    add(doctor)
    add(stop)
    age = "for how long nothing was written into it, as in 7d or 12h; default: 7d"
    cleaning = add(clean)
    cleaning.add_argument("--older", metavar="AGE", type=_seconds, default="7d", help=age)
    cleaning.add_argument("--yes", action="store_true", help="remove it without a question")
    add(home)


def doctor(_: argparse.Namespace) -> int:
    """Check whether the lessons can run here, and print how to fix what is wrong."""
    return diagnose().say()


def stop(_: argparse.Namespace) -> int:
    """Stop the processes that this lab has started on this machine, and no others."""
    lab = Lab(Settings.from_env().home)
    in_use = [group for group, users in lab.users().items() if users]
    stopped = lab.stop()
    for process in stopped:
        print(f"stopped {process}")
    if not stopped:
        print(f"nothing of the lab in {lab.home} is running here")
        for other in family.other_homes(lab.id):
            stop = f"LABKIT_HOME={shlex.quote(str(other))} {shlex.quote(sys.executable)} -m labkit stop"
            print(f"the lab in {other} is running; to stop that one: {stop}")
    for group in in_use:
        print(f"a notebook was using its {group}: run the cell again that starts it")
    return 0


def _seconds(age: str) -> float:
    match = re.fullmatch(r"(\d+)([dh])", age)
    if match is None:
        raise argparse.ArgumentTypeError(f"{age!r} is no age such as 7d or 12h")
    return int(match[1]) * {"d": 86_400, "h": 3600}[match[2]]


def clean(options: argparse.Namespace) -> int:
    """Show old runs with their checkpoints and old sessions of Ray and Spark; remove them if you agree."""
    home = Settings.from_env().home
    if Lab(home).groups():
        fact = "processes of this lab are running, and may use what looks old"
        raise LabError(f"clean {home}", fact, "python -m labkit stop, then clean again")
    folders = old_folders(home, options.older)  # {path: bytes}
    if not folders:
        print(f"nothing old is under {home}")
        return 0
    for parent, number in sorted(Counter(path.parent for path in folders).items()):
        print(f"{plural(number, 'folder')} in {parent}")
    print(f"{plural(len(folders), 'folder')} with {size(sum(folders.values()))} in all")
    if not options.yes:
        print("remove all of it? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("nothing was removed")
            return 0
    failed = 0
    for path in folders:
        try:
            shutil.rmtree(path)
        except OSError as error:
            failed += 1
            print(f"could not remove {path}: {error.strerror}", file=sys.stderr)
    print(f"removed {len(folders) - failed} of {len(folders)}")
    return int(bool(failed))


def home(_: argparse.Namespace) -> int:
    """Print the folder where this lab keeps its runs, logs and objects."""
    print(Settings.from_env().home)
    return 0
