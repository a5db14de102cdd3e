"""The errors of the lab: each says what was attempted, the fact that stopped it, and the fix.

    >>> raise ClusterError(
    ...     "start a training with 4 workers of 1 CPU each",
    ...     "the cluster has 2 CPUs, and Ray would wait for ever",
    ...     "lower num_workers to 2, or lab.add_node(cpus=2)",
    ... )

In a notebook they show as these three lines and nothing else: the reader did something that cannot
work, and a traceback through the lab's own files would not tell which.
"""

__all__ = [
    "CheckError",
    "ClusterError",
    "DatasetError",
    "EnvironmentProblem",
    "LabError",
    "LessonError",
    "ModelError",
    "RunError",
    "RunFailed",
    "RunStopped",
    "SettingsError",
    "StorageDenied",
    "StorageError",
    "StorageUnreachable",
]


class LabError(Exception):
    """Base of all errors of the lab.

    Args:
        attempt: what was being done, as a verb phrase ("start a second node").
        fact: what stopped it, with the numbers.
        fix: what the reader can do, the exact command where there is one.
    """

    def __init__(self, attempt: str, fact: str, fix: str) -> None:
        # All three go to Exception's args so that the error survives pickling between processes.
        super().__init__(attempt, fact, fix)
        self.attempt, self.fact, self.fix = attempt, fact, fix

    def __str__(self) -> str:
        return f"could not {self.attempt}\n  because {self.fact}\n  fix: {self.fix}"

    def _render_traceback_(self) -> list[str]:
        """IPython shows these lines in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class SettingsError(LabError):
    """An environment variable or an option has a value that cannot be used."""


class DatasetError(LabError):
    """A data set could not be found, fetched, read or made."""


class ClusterError(LabError):
    """A cluster could not be started, reached, grown, shrunk or stopped."""


class EnvironmentProblem(LabError):
    """The machine lacks something that a lesson needs."""


class LessonError(LabError):
    """A lesson's source cannot be built into a notebook, or an exercise is not written as one."""


class CheckError(LabError):
    """There is no such exercise, or an answer is not right (that only where LABKIT_CHECK=strict)."""


class ModelError(LabError):
    """A model, what goes into it, or its saved state cannot be used as asked."""


class RunError(LabError):
    """A panel or a run record was used in a way that cannot work."""


class RunFailed(LabError):
    """A training ended with an exception of the learner's or the engine's; the panel shows it."""


class StorageError(LabError):
    """An object store could not be started or used, or what it holds is not what was sent."""


class StorageUnreachable(StorageError):
    """Nobody answers at the store's endpoint, or not in its protocol (TLS against a plain port)."""


class StorageDenied(StorageError):
    """The store answers and refuses: an unknown key, a wrong secret, a missing right, a wrong clock."""


class RunStopped(LabError):
    """A run was stopped by its reader: the Stop button or the kernel's interrupt.

    It shows as one calm line, since nothing went wrong.
    """

    def __str__(self) -> str:
        return f"{self.attempt}: {self.fact}. {self.fix}"

    def _render_traceback_(self) -> list[str]:
        return [str(self)]
