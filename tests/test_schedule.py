"""The simulator of parallel programs, and the same programs on real ranks.

Claims in lessons 12 and 12b hold its times, bytes, memory and bubbles.
"""

import itertools
import signal
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from course import schedule
from course.schedule import all_gather, all_reduce, compute, recv, reduce_scatter, run, send, start, wait
from labkit.errors import RunFailed

pytestmark = pytest.mark.slow


def ring(rank, world, values):
    """An all-reduce in a ring; ends with the collectives of the engine, for comparison."""
    pieces = np.split(values[rank], world)
    for step in range(2 * (world - 1)):
        sending = yield start(send((rank + 1) % world, pieces[(rank - step) % world]))
        got = yield recv((rank - 1) % world)
        yield wait(sending)
        into = (rank - step - 1) % world
        pieces[into] = pieces[into] + got if step < world - 1 else got
    whole = np.concatenate(pieces)
    started = yield start(all_reduce(values[rank]))
    mine = yield reduce_scatter(values[rank])
    gathered = yield all_gather(mine)
    of_all = yield all_reduce(values[rank], group=[])  # as without a group
    return whole, (yield wait(started)), gathered, of_all


def test_a_ring_and_the_collectives_have_the_sum_on_simulated_and_on_real_ranks():
    values = [np.arange(12.0) * 10**rank for rank in range(2)]
    for ran in (run(ring, 2, values), schedule.on_ranks(ring, 2, values)):
        for total in itertools.chain(*ran.results):
            assert np.array_equal(total, sum(values))


def test_real_ranks_say_what_they_waited_for_or_raised():
    def deaf(rank, world):
        yield recv(1 - rank)

    def broken(rank, world):
        yield compute()
        raise ValueError(f"no data on {rank}")

    def dies(rank, world):
        yield compute()
        if rank == 1:
            signal.raise_signal(signal.SIGKILL)
        yield recv(1)

    def all_die(rank, world):
        yield compute()
        signal.raise_signal(signal.SIGKILL)

    with pytest.raises(RunFailed, match="without a word, and .* from rank 1\n"):
        schedule.on_ranks(dies, 2, limit=90)
    with pytest.raises(RunFailed, match="without a word, and .* from rank 0, 1"):
        schedule.on_ranks(all_die, 2, limit=1e9)
    with pytest.raises(RunFailed, match="Timed out.*receives from rank . in line"):
        schedule.on_ranks(deaf, 2, limit=6)  # the ranks have to meet within that, too
    with pytest.raises(RunFailed, match="ValueError: no data on"):
        schedule.on_ranks(broken, 2)


def both_send(rank, world):
    yield send(1 - rank, np.zeros(3))
    yield recv(1 - rank)


def only_one_joins(rank, world):
    if rank == 0:
        yield all_reduce(np.zeros(3))


def two_kinds(rank, world):
    yield all_reduce(np.zeros(4)) if rank else all_gather(np.zeros(4))


def never_received(rank, world):
    yield start(send(1 - rank, np.zeros(3))) if rank else compute()


def never_waited_for(rank, world):
    if rank:
        yield start(send(0, np.zeros(3)))
    else:
        yield recv(1)


def started_without_yield(rank, world):
    sending = start(send(1 - rank, np.zeros(3)))
    yield recv(1 - rank)
    yield wait(sending)


def waits_for_an_operation(rank, world):
    yield wait(all_reduce(np.zeros(3)))


def adds_an_operation(rank, world):
    yield compute()
    return all_reduce(np.zeros(3)) / world


def uneven(rank, world):
    yield reduce_scatter(np.zeros(3))


def itself(rank, world):
    yield send(rank, np.zeros(3))


def no_op(rank, world):
    yield 3


PROGRAMS = [
    (both_send, "rank 0 sends to rank 1 in line .* and waits for rank 1; .* in a circle: 0 → 1 → 0"),
    (only_one_joins, "rank 0 calls all_reduce in line .* waits for rank 1, which has returned already"),
    (two_kinds, "rank 0 calls all_gather .*, but rank 1 calls all_reduce"),
    (never_received, "rank 1 sends to rank 0 in line .* has no counterpart"),
    (never_waited_for, "rank 1 sends to rank 0 in line .* by `start` and never waits for it"),
    (started_without_yield, r"`sending` of rank 0 is start\(send\(1, …\)\), made without `yield`"),
    (waits_for_an_operation, r"for all_reduce\(…\), which was made without `yield`"),
    (adds_an_operation, "rank 0 computes, in line .*, with a message or collective that it didn't yield"),
    (uneven, "3 rows can't be cut into 2 equal parts"),
    (itself, "rank 0 sends to rank 0"),
    (no_op, "rank 0 yields 3"),
    (lambda rank, world: 3, "no generator"),
]


@pytest.mark.parametrize("program, fact", PROGRAMS)
def test_a_program_that_cannot_work_is_explained(program, fact):
    with pytest.raises(RunFailed, match=fact) as caught:
        run(program, 2)
    assert caught.value.fix


def test_a_rank_cannot_change_what_belongs_to_the_caller():
    def changes(rank, world, values, names):
        names.append(rank)  # a list of its own, as on real ranks
        yield compute()
        values[rank] += 1

    values, names = [np.zeros(3), np.zeros(3)], []
    with pytest.raises(RunFailed, match=r"rank 0 changes, in line \d+, `values\[rank\] \+= 1`"):
        run(changes, 2, values, names)
    assert names == [] and not np.any(values)
    values[0] += 1  # the caller still can


def test_what_a_program_raises_says_where():
    def broken(rank, world):
        yield compute(2 - rank)
        raise ValueError("no data")

    with pytest.raises(ValueError, match="no data") as caught:
        run(broken, 2)
    assert (
        "on rank 1 in line" in caught.value.__notes__[0] and "raise ValueError" in caught.value.__notes__[0]
    )


def test_it_draws_itself():
    def step(rank, world):
        for number in range(3):
            yield compute(1, f"F{number}")
            yield all_reduce(np.zeros(100))

    drawn = run(step, 3)._repr_html_()
    root = ET.fromstring(drawn[drawn.index("<svg") : drawn.index("</svg>") + 6])
    words = ["".join(text.itertext()) for text in root.iter("text")]
    assert {"rank 0", "rank 2", "F0", "F2"} <= set(words)
    width = float(root.get("viewBox").split()[2])
    assert all(0 <= float(bar.get("x")) + float(bar.get("width")) <= width for bar in root.iter("rect"))
