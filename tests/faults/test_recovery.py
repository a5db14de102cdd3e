"""What a preemption costs: each epoch's rows are counted. The runs take too long for a suite."""

import pytest

from benchmarks import _recovery as recovery

STEPS = 2 * recovery._PER_EPOCH


def told(group, workers, steps):
    """What the ranks of a group write down: the rows of each step, shared among them."""
    return [
        (float(group), group, rank, workers, step, list(recovery._rows_of(step)[rank::workers]))
        for step in steps
        for rank in range(workers)
    ]


def test_a_run_that_shrank_counts_as_its_last_workers_made_each_step():
    lines = told(1, 4, range(9)) + told(2, 2, range(5, 20)) + told(3, 4, range(18, STEPS))
    recovery.check_rows(lines, STEPS)
    assert recovery._twice(lines) == 4 + 2


@pytest.mark.parametrize(
    "harm",
    [
        lambda lines: lines[1:],
        lambda lines: [*lines, lines[0]],
        lambda lines: [(*lines[0][:-1], lines[-1][-1]), *lines[1:]],
        lambda lines: lines + told(2, 1, [3])[:1] + told(3, 2, [3])[:1],
    ],
)
def test_a_row_that_is_missing_or_trained_twice_is_found(harm):
    with pytest.raises(AssertionError, match="epoch 0 has"):
        recovery.check_rows(harm(told(1, 2, range(STEPS))), STEPS)
