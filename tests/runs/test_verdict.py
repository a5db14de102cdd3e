"""The verdict: numbers of each rank in, the cause, its rank and what it costs out."""

import re
from dataclasses import replace

import pytest

from labkit import runs
from labkit.__main__ import main
from labkit.runs.record import RunRecord
from labkit.runs.verdict import COLUMNS, PAGES, PARTS, verdict
from steps_told import EPOCHS, rank, told

CAUSES = {
    "healthy": (told(rank(), rank()), "healthy", None, ""),
    "alone": (told(rank(), exchange=0.0), "healthy", None, ""),
    "computing": (told(rank(), rank(forward=0.03), rank()), "slow rank", 1, "computing"),
    "busy": (told(rank(), rank(forward=0.03, queue=0.02)), "slow rank", 1, "busy"),
    "rows": (told(rank(rows=192, forward=0.02, backward=0.03), rank()), "slow rank", 0, "rows"),
    "rows of one": (told(rank(), rank(data=0.03, computed=0.03)), "data", 1, "computing"),
    "store of one": (told(rank(), rank(data=0.03)), "data", 1, "waiting"),
    "rows of all": (
        told(rank(data=0.03, computed=0.03), rank(data=0.03, computed=0.03)), "data", None, "computing"
    ),
    "store": (told(rank(data=0.03), rank(data=0.03)), "data", None, "waiting"),
    # Ray Data gives its rows to the ranks in turn, so one of them waits longer.
    "store, one rank more": (told(rank(data=0.03), rank(data=0.06)), "data", None, "waiting"),
    "exchange": (told(rank(), rank(), exchange=0.05), "exchange", None, ""),
    "exchange, of few rows": (told(rank(rows=4), rank(rows=4), exchange=0.01), "exchange", None, ""),
    "exchange, of more rows": (told(rank(rows=16), rank(rows=16), exchange=0.01), "healthy", None, ""),
    "reports": (told(rank(reports=0.02), rank(reports=0.02)), "reports", None, ""),
    # The store keeps one rank, and the others wait for it in the next exchange.
    "reports of one": (told(rank(reports=0.02), rank()), "reports", None, ""),
    "validation": (told(rank(evaluating=0.02), rank(evaluating=0.02)), "validation", None, ""),
    "validation of one": (told(rank(evaluating=0.02), rank(reports=0.02)), "validation", None, ""),
    "memory": (told(rank(), rank(grows=1e6)), "memory", 1, ""),
    # A machine that is busy for all ranks alike is no cause of one of them, nor is a rank with a bit more.
    "busy machine": (
        told(rank(forward=0.02, queue=0.01), rank(forward=0.021, queue=0.011)), "healthy", None, ""
    ),
    "exchange on a busy machine": (
        told(rank(forward=0.06, queue=0.07), rank(forward=0.06, queue=0.07), exchange=0.05),
        "healthy", None, "",
    ),
    # What other programs add to a small difference proves nothing.
    "slower on a busy machine": (
        told(
            rank(data=0.0, forward=0.006, backward=0.008, queue=0.010),
            rank(data=0.0, forward=0.012, backward=0.015, queue=0.0195),
        ),
        "unknown", None, "",
    ),
    # On a busy machine, who computes more also waits longer for a core.
    "computing, busy machine": (
        told(rank(forward=0.04, queue=0.033), rank(forward=0.12, queue=0.073)), "slow rank", 1, "computing"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_its_rank_and_why(name):
    parts, cause, number, detail = CAUSES[name]
    judged = verdict(parts)
    assert judged.name == cause, judged.sentence
    if judged.causes:
        assert (judged.causes[0].rank, judged.causes[0].detail) == (number, detail), judged.sentence
        assert len(judged.causes) == 1, judged.sentence
    assert all(sum(shares) == pytest.approx(1) for shares in judged.shares.values())


@pytest.mark.parametrize(
    ("slow", "name"),
    [
        ((rank(), rank(forward=0.03)), "slow rank"),
        ((rank(data=0.03), rank(data=0.03)), "data"),
        ((rank(reports=0.02), rank(reports=0.02)), "reports"),
        ((rank(evaluating=0.02), rank(evaluating=0.02)), "validation"),
    ],
)
def test_an_epoch_without_the_cause_is_predicted(slow, name):
    (cause,) = verdict(told(*slow)).causes
    healthy = verdict(told(rank(), rank())).epoch
    best, low, high = cause.without
    assert cause.name == name and best == pytest.approx(healthy, rel=0.05)
    assert low <= healthy <= high


@pytest.mark.parametrize(("crowd", "forward"), [(1.0, 0.010), (1.5, 0.010 + 0.5 * 0.028)])
def test_without_other_programs_ranks_still_wait_for_each_other_on_a_core_that_they_share(crowd, forward):
    parts = told(rank(forward=0.022, queue=0.012), rank(forward=0.042, queue=0.032))
    parts["crowds"] = {"0": crowd, "1": crowd}
    (cause,) = verdict(parts).causes
    without = verdict(told(rank(forward=forward), rank(forward=forward))).epoch
    assert cause.detail == "busy" and cause.without[0] == pytest.approx(without, rel=0.05)


def test_ranks_that_crowd_a_core_by_themselves_are_no_other_programs():
    parts = told(rank(forward=0.022, queue=0.012), rank(forward=0.042, queue=0.032))
    parts["crowds"] = {"0": 9.0, "1": 9.0}
    assert verdict(parts).name == "healthy"


@pytest.mark.parametrize(
    ("crowd", "who"),
    [
        (1.0, "other programs had the core"),
        (1.5, "ranks waited for a core, as there are more ranks than cores"),
    ],
)
def test_who_had_the_core_is_said(crowd, who):
    parts = told(rank(forward=0.02, queue=0.01), rank(forward=0.02, queue=0.01))
    parts["crowds"] = {"0": crowd, "1": crowd}
    assert verdict(parts).sentence.endswith(f"; for 26% of the time, {who}")


def test_several_causes_come_in_the_order_of_their_seconds():
    both = told(rank(evaluating=0.02), rank(evaluating=0.02, forward=0.05))
    assert [cause.name for cause in verdict(both).causes] == ["slow rank", "validation"]
    both = told(rank(evaluating=0.08), rank(evaluating=0.08, forward=0.05))
    judged = verdict(both, start=100.0, total=110.0)
    assert [cause.name for cause in judged.causes] == ["start", "validation", "slow rank"]
    assert all(cause.page in judged.sentence for cause in judged.causes)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({}, "no parts"),
        (told(rank(), rank(), steps=15), "10 steps in"),
        ({"unseen": "on a GPU", "ranks": {}}, "on a GPU"),
        (told(rank(), rank(forward=0.2, from_step=150)), "changed during the run"),
        ({"ranks": {"0": [[1, 2], [3, 4]]}}, "damaged"),
        ({"ranks": {"0": 5}}, "damaged"),
        ({"ranks": {"0": [[float("inf")] * len(COLUMNS)] * 2}}, "damaged"),
        ({"ranks": {**told(rank(), rank())["ranks"], "1": []}}, "no parts"),
    ],
)
def test_not_enough_to_say(parts, why):
    found = verdict(parts)
    assert found.name == "unknown" and not found.causes
    assert found.sentence.startswith("not enough to say: ") and why in found.sentence


def test_a_rank_that_was_heard_of_later_and_more_often():
    parts = told(rank(), rank(forward=0.03))
    often = told(rank(), rank(forward=0.03), every=3)
    parts["ranks"]["1"] = often["ranks"]["1"][2:-2]
    assert verdict(parts).causes[0].rank == 1


def test_the_sections_to_read_are_there(root):
    for place, section in PAGES.values():
        pattern = f"{place.replace('lesson ', 'lessons/')}_*.py" if place.startswith("lesson ") else place
        (page,) = root.glob(pattern)
        assert re.search(rf"^(# )?#+ {re.escape(section)}$", page.read_text(), re.MULTILINE), section


# -- the command ------------------------------------------------------------------------------------------


@pytest.fixture
def two_runs(tmp_path, monkeypatch):
    """A slow run and a healthy one, as records."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    both = {"slow": told(rank(), rank(forward=0.03)), "fast": told(rank(), rank())}
    for number, (name, parts) in enumerate(both.items()):
        epoch = verdict(parts).epoch
        RunRecord(
            name=name, run_id=f"id-{name}", engine="Ray Train", state="finished", parts=parts,
            started_at=f"2026-01-31T12:00:0{number}+00:00", seconds_per_epoch=[epoch] * EPOCHS,
            verdict=verdict(parts).to_json(),
        ).write(tmp_path / "runs" / name / f"id-{name}")  # fmt: skip


def test_why_prints_the_verdict_of_a_record(two_runs, capsys):
    assert main(["why", "id-slow"]) == 0
    shown = capsys.readouterr().out
    assert "slow rank: rank 1 takes 20 ms longer" in shown and "rank 0: data" in shown
    assert main(["why", "slow", "--than", "fast"]) == 1
    assert "an epoch took 2.5 s, and 1.4 s in id-fast: +69 %" in capsys.readouterr().out
    assert main(["why", "slow", "--than", "fast", "--percent", "80"]) == 0
    assert main(["why", "fast", "--than", "slow"]) == 0
    capsys.readouterr()
    without = replace(runs.get("id-slow"), run_id="id-none", seconds_per_epoch=[0.0])
    without.write(f"{without.folder}/../id-none")
    assert main(["why", "slow", "--than", "id-none"]) == 2
    assert "id-none has no epoch that ended" in capsys.readouterr().err
    assert main(["why", "nothing"]) == 2
    assert "nothing" in capsys.readouterr().err


def test_why_for_programs(two_runs, capsys):
    import json

    assert main(["why", "slow", "--json", "--than", "fast"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert (shown["verdict"], shown["causes"][0]["rank"]) == ("slow rank", 1)
    assert shown["slower_percent"] == pytest.approx(69, abs=1) and list(shown["shares"]["0"]) == list(PARTS)


def test_the_table_of_runs_has_the_verdict(two_runs):
    assert list(runs.table()["verdict"]) == ["healthy", "slow rank"]
