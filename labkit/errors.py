"""The lab's errors: each says what was attempted, the fact that stopped it, and the fix.

    raise NoRoom("start 4 workers", "the cluster has 2 CPUs", "num_workers=2, or lab.add_node(cpus=2)")

A notebook shows these three lines and no traceback: the cause is in the reader's call, not in the lab.
A program that catches one decides by its class, because texts change:

    LabError
    ├── BadInput      an argument, a setting or a name that can't be right
    ├── NoRoom        more CPUs, GPUs, memory or disk than there is
    ├── NotReachable  a cluster, a store or a server that doesn't start or answer, fails, or refuses a key
    ├── Damaged       a file that isn't what was once written
    ├── RunStopped    the reader stopped it
    └── RunFailed     the reader's code or the engine raised

What is missing here, such as a package, or what this machine's disk refuses, is a plain `LabError`.
"""

import importlib.util
import numbers
import sys


class LabError(Exception):
    """What could not be done (a verb phrase), what stopped it, with numbers, and how to fix it."""

    def __init__(self, attempt: str, fact: str, fix: str) -> None:
        super().__init__(attempt, fact, fix)  # with its arguments in args, it can be pickled
        self.attempt, self.fact, self.fix = attempt, fact, fix

    def __str__(self) -> str:
        return f"could not {self.attempt}\n  because {self.fact}\n  fix: {self.fix}"

    def _render_traceback_(self) -> list[str]:
        """IPython shows these lines in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class BadInput(LabError):
    """An argument, a setting or a name can't be right; nothing was started."""


class NoRoom(LabError):
    """More CPUs, GPUs, memory or disk were asked for than there are, so waiting would not help."""


class NotReachable(LabError):
    """A cluster, a store or a server doesn't start or answer, fails, or refuses a key, a token, a right."""


class Damaged(LabError):
    """A file isn't what was once written: cut off, or changed by another program."""


class RunFailed(LabError):
    """A run ended with an exception, of the learner's code or of the engine. The panel shows it."""


class RunStopped(LabError):
    """The reader stopped a run. It shows as one line, because nothing went wrong."""

    def __str__(self) -> str:
        return f"{self.attempt}: {self.fact}. {self.fix}"

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def expect_int(attempt: str, name: str, value: object, *, least: int = 1) -> None:
    """Raise `BadInput` unless `value` is a whole number from `least` on."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        fact = f"{name}={value!r} is not a whole number from {least} on"
        raise BadInput(attempt, fact, f"for example {name}={least + 1}")


def expect_installed(attempt: str, *modules: str) -> None:
    """Raise a `LabError` with the command that installs them, unless all `modules` are installed.

    Args:
        modules: the packages that have them are called the same.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        is_or_are = "is" if len(missing) == 1 else "are"
        fact = f"{' and '.join(missing)} {is_or_are} not installed"
        raise LabError(attempt, fact, f"{sys.executable} -m pip install {' '.join(missing)}")
