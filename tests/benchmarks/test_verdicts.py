"""Five runs with a known cause, and what the verdict says of them; `benchmarks.verdicts` makes many."""

import pytest

from benchmarks.verdicts import CASES, HEALTHY, Case, cases, compare, judge, run, table
from labkit.local import cluster

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/worker/", "labkit/runs/", "benchmarks/")]

RUNS = [
    Case("slow rank, computing", 2, "mlp", 1),
    Case("slow rows on one rank", 2, "cnn", 0),
    Case("slow upload", 2, "cnn", 0),
    Case("validation in the loop", 2, "mlp", 0),
    Case("leak", 2, "mlp", 0),
]


@pytest.mark.each_change
def test_the_runs_are_fixed_by_the_seed():
    assert cases(3, 48) == cases(3, 48) != cases(3, 49)
    assert [case.name for case in cases(2, 48)] == [*CASES, *HEALTHY] * 2


@pytest.mark.each_change
def test_the_table_counts_what_was_named():
    row = {"case": "slow store", "named": "data", "rank": None}
    other = {"case": "slow rank, computing", "named": "healthy", "rank": None}
    shown = table([row, row, other]).splitlines()
    assert shown[0].startswith("| injected | runs | slow rank | data |")
    assert shown[2:] == [
        "| slow rank, computing | 1 |  |  |  |  |  |  | 1 |  |  |",
        "| slow store | 2 |  | 2 |  |  |  |  |  |  |  |",
    ]


@pytest.mark.each_change
def test_a_prediction_is_compared_with_the_runs_without_the_fault():
    predicted = [((1.1, 0.9, 1.5), 1.9), ((1.1, 0.9, 1.5), 1.4), ((1.1, 0.9, 1.5), 1.2), (None, 1.0)]
    rows = [{"without": without, "healthy_epoch": seconds} for without, seconds in predicted]
    assert compare(rows) == "predictions: 1 of 3 within 15 %, 2 within their band"


@pytest.fixture(scope="module")
def lab(home):
    with cluster.start(cpus_per_node=3):
        yield


@pytest.mark.parametrize("case", RUNS, ids=lambda case: case.name)
def test_the_injected_cause_is_named(case, lab):
    """What other programs on this machine cost may come first, but the cause is there."""
    cause, detail, of_rank = CASES[case.name]
    record = run(case)
    causes = record.verdict["causes"]
    named = {(one["name"], one["detail"], one["rank"] if of_rank else None) for one in causes}
    assert judge(case, record)["sentence"] == record.verdict["sentence"]
    assert (cause, detail, case.rank if of_rank else None) in named, record.verdict["sentence"]
