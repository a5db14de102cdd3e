"""Run a learner's generator of lessons 12 and 12b as a schedule: simulated, and on real ranks."""

from collections.abc import Callable
from typing import Any

from labkit import schedule
from labkit.errors import LabError
from labkit.exercises.answers import Wrong, expect_function, require_no_dots


def simulated(
    name: str, program: Callable, world: int, *args: Any, only_own: bool = False, **costs: float
) -> schedule.Simulated:
    """The simulation of an answer.

    Args:
        only_own: each list in `args` has an entry for each rank, of which a rank may read its own.

    Raises:
        NotAttempted: a ``...`` is still in it.
        Wrong: it is no function, it raises, or the simulator refuses it.
    """
    expect_function(program, name)
    require_no_dots(program)

    def alone(rank: int, world: int, *given: Any) -> Any:
        return program(rank, world, *(_Own(rank, one) if isinstance(one, list) else one for one in given))

    alone.__name__ = program.__name__
    try:
        return schedule.run(alone if only_own else program, world, *args, **costs)
    except Wrong:
        raise
    except LabError as error:
        raise Wrong(f"with {world} ranks, {error.fact}. {error.fix}") from None
    except Exception as error:
        raise Wrong(f"with {world} ranks, {name} raised {type(error).__name__}: {error}") from error


def on_real_ranks(name: str, program: Callable, world: int, *args: Any) -> list[Any]:
    """What real ranks return. The simulation was right, so the answer hardly ever fails here.

    Raises:
        Wrong: it does, or takes 15 s.
    """
    try:
        return schedule.on_ranks(program, world, *args, limit=15).results
    except LabError as error:
        raise Wrong(
            f"the simulation is right, but on {world} real ranks {name} stops: {error.fact}"
        ) from None


class _Own:
    """What a list with an entry for each rank is to one of them: it reads its own."""

    def __init__(self, rank: int, every: list) -> None:
        self._rank, self._every = rank, every

    def __len__(self) -> int:
        return len(self._every)

    def __getitem__(self, place: Any) -> Any:
        if place != self._rank:
            raise Wrong(
                f"rank {self._rank} reads entry {place!r} of a list that has one for each rank: only its own "
                "is on that rank, and what the others have must be sent"
            )
        return self._every[place]
