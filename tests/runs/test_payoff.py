"""Will more workers pay? The costs come out of exact times exactly; what cannot be fitted is refused."""

import math

import pytest

from labkit.errors import RunError
from labkit.runs import will_it_pay

SERIAL, PER_ROW, ALPHA, BETA = 0.004, 0.0005, 0.0002, 0.003


def seconds(workers, rows, megabytes):
    """By the formula of the model, for a ring of 2 (n - 1) rounds that pass on 1/n of the gradients each."""
    rounds = 2 * (workers - 1)
    return SERIAL + PER_ROW * rows + rounds * (ALPHA + BETA * megabytes / workers)


def measured(*runs, noise=(1.0,)):
    return [(*run, [factor * seconds(*run) for factor in noise]) for run in runs]


TWO_RUNS = ((1, 256, 0), (1, 64, 0), (2, 32, 1), (2, 32, 64))
JOB = {"rows": 256, "megabytes": 16, "steps": 3600}


def test_exact_times_of_two_runs_give_the_four_costs():
    cost = will_it_pay(measured(*TWO_RUNS), **JOB)
    found = (cost.serial, cost.per_row, cost.alpha, cost.beta)
    assert found == pytest.approx((SERIAL, PER_ROW, ALPHA, BETA), rel=1e-6)
    assert cost.serial_share == pytest.approx(SERIAL / (SERIAL + 256 * PER_ROW))
    for n in (1, 2, 4, 8, 32):
        row, step = cost.table.loc[n], seconds(n, 256 / n, 16)
        assert row["step ms"] == pytest.approx(1e3 * step)
        assert row["low ms"] == pytest.approx(row["high ms"])
        assert row["speed-up"] == pytest.approx(seconds(1, 256, 0) / step)
        assert (row["hours"], row["core-hours"]) == pytest.approx((step, n * step))  # 3,600 steps
    assert "alpha 200 µs, beta 3.00 ms/MB" in repr(cost) and "core-hours" in cost._repr_html_()


def test_costs_that_would_be_negative_are_none_and_the_others_are_fitted_without_them():
    # The larger all-reduce happened to be faster.
    runs = [*measured(*TWO_RUNS[:2]), (2, 32, 1, [0.03]), (2, 32, 64, [0.02])]
    cost = will_it_pay(runs, **JOB)
    assert cost.beta == 0
    assert 0.02 < cost.serial + 32 * cost.per_row + 2 * cost.alpha < 0.03


def test_the_start_is_paid_back_after_some_steps_or_never():
    table = will_it_pay(measured(*TWO_RUNS), **JOB, start=20).table
    saved = seconds(1, 256, 0) - seconds(4, 64, 16)
    assert table.loc[4, "pays after"] == pytest.approx(20 / saved)
    assert table.loc[4, "hours"] == pytest.approx(20 / 3600 + seconds(4, 64, 16))
    assert table.loc[1, "hours"] == pytest.approx(seconds(1, 256, 0))  # it needs no such start
    heavy = will_it_pay(measured(*TWO_RUNS), rows=256, megabytes=400, steps=10, start=20).table
    assert heavy.loc[32, "pays after"] == math.inf


def test_the_range_is_wider_where_the_measurements_vary_more():
    runs = {k: measured(*TWO_RUNS, noise=(1 - k, 1 - k / 2, 1.0, 1 + k / 2, 1 + k)) for k in (0.02, 0.2)}
    tables = {k: will_it_pay(found, **JOB).table.loc[8] for k, found in runs.items()}
    width = {k: row["high ms"] - row["low ms"] for k, row in tables.items()}
    assert 0 < 3 * width[0.02] < width[0.2]
    assert tables[0.2]["low ms"] < 1e3 * seconds(8, 32, 16) < tables[0.2]["high ms"]


@pytest.mark.parametrize(
    "runs",
    [
        (),
        TWO_RUNS[:3],
        ((1, 256, 0), (1, 256, 0), (2, 256, 1), (2, 256, 64)),  # one number of rows
        ((1, 256, 0), (1, 64, 0), (1, 256, 1), (1, 64, 64)),  # no all-reduce
        ((1, 256, 0), (1, 64, 0), (2, 32, 64), (2, 64, 64)),  # one size
    ],
)
def test_too_few_measurements_are_refused(runs):
    with pytest.raises(RunError) as error:
        will_it_pay(measured(*runs), **JOB)
    assert "predict the cost of more workers" in error.value.attempt
    assert "don't tell serial, per_row, alpha and beta apart" in error.value.fact
    assert "two numbers of rows, and two of megabytes" in error.value.fix


@pytest.mark.parametrize(
    "change, fact",
    [
        ({"rows": 0}, "rows is 0"),
        ({"steps": -1}, "steps is -1"),
        ({"start": -2.0}, "start is -2.0"),
        ({"workers": [0, 4]}, r"workers is \[0, 4\]"),
        ({"workers": []}, r"workers is \[\]"),
    ],
)
def test_a_run_that_cannot_be_is_refused(change, fact):
    with pytest.raises(RunError, match=fact):
        will_it_pay(measured(*TWO_RUNS), **JOB | change)


@pytest.mark.parametrize(
    "wrong",
    [(0, 32, 1, [0.1]), (2, -1, 1, [0.1]), (2, 32, 1, []), (2, 32, 1, [0.1, 0]), (2, 32, 1, [math.nan])],
)
def test_a_measurement_that_cannot_be_is_refused(wrong):
    with pytest.raises(RunError, match="one measurement has"):
        will_it_pay([*measured(*TWO_RUNS), wrong], **JOB)
