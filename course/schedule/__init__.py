"""Parallel programs by hand: each rank is a generator, simulated in one process or run on real Gloo ranks.

    >>> def swap(rank, world, values):
    ...     sending = yield start(send(1 - rank, values[rank]))
    ...     other = yield recv(1 - rank)
    ...     yield wait(sending)
    ...     return other
    >>> run(swap, 2, [numpy.zeros(500), numpy.ones(500)])
    simulated: 2 ranks, 0.30 units of time, …

Real arrays move, so a wrong algorithm returns a wrong result. Time and memory are counted and not measured: a
message takes `ALPHA` + `BETA` for each megabyte, and each rank can send one message and receive another at
the same time. What a rank holds are the arrays that its variables refer to. `on_ranks` runs the same
generator in processes, where torch.distributed answers each ``yield``.
"""

from course.schedule.ops import (
    Event,
    all_gather,
    all_reduce,
    compute,
    recv,
    reduce_scatter,
    send,
    start,
    wait,
)
from course.schedule.ranks import Measured, on_ranks
from course.schedule.simulation import ALPHA, BETA, MEGABYTE, Simulated, run

__all__ = [
    "ALPHA", "BETA", "MEGABYTE", "Event", "Measured", "Simulated", "all_gather", "all_reduce", "compute",
    "on_ranks", "recv", "reduce_scatter", "run", "send", "start", "wait",
]  # fmt: skip
