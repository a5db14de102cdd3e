"""Five runs with a known cause, and what the verdict says of them; `benchmarks.verdicts` makes many."""

import pytest

from benchmarks.verdicts import CASES, HEALTHY, Case, cases, compare, judge, run, table
from labkit.local import cluster
from labkit.settings import Settings

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
def test_a_prediction_is_compared_with_its_neighbours_and_with_the_median():
    about = {"loop": "2 workers, mlp, healthy"}
    rows = [about | {"without": None, "healthy_epoch": seconds} for seconds in (1.0, 1.0, 1.2)]
    rows.append(about | {"without": (1.1, 0.9, 1.5), "healthy_epoch": 1.9})
    assert compare(rows).splitlines() == [
        "2 workers, mlp, healthy: 1.00 1.00 1.20 1.90 s",
        "compared with the runs before and after, without the fault: 0 of 1 within 15 %, 0 within their band",
        "compared with the median run of its loop: 1 of 1 within 15 %, 1 within their band",
    ]


@pytest.fixture(scope="module")
def settings(home):
    with cluster.start(cpus_per_node=3):
        yield Settings.from_env()


@pytest.mark.parametrize("case", RUNS, ids=lambda case: case.name)
def test_the_injected_cause_is_named(case, settings):
    """What other programs on this machine cost may come first, but the cause is there."""
    cause, detail, of_rank = CASES[case.name]
    record = run(case, settings)
    causes = record.verdict["causes"]
    named = {(one["name"], one["detail"], one["rank"] if of_rank else None) for one in causes}
    assert judge(case, record)["sentence"] == record.verdict["sentence"]
    assert (cause, detail, case.rank if of_rank else None) in named, record.verdict["sentence"]
