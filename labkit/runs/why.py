"""Print the verdict on a past run: the command ``python -m labkit why``."""

import json
from typing import Any

from labkit.display.formatting import seconds
from labkit.errors import LabError
from labkit.runs.browse import get, latest, median_epoch
from labkit.runs.record import RunRecord
from labkit.runs.verdict import in_words, verdict_of


def why(run: str, *, than: str | None = None, percent: float = 10, as_json: bool = False) -> int:
    """Print the verdict; return 1 if the run's epochs are slower than another's by more than this, else 0.

    Raises:
        LabError: no run has this id or name, or one of the two has no epoch that ended.
    """
    record = _find(run)
    verdict = verdict_of(record)
    facts: dict[str, Any] = {}
    if than is not None:
        facts = _compared(record, _find(than))
    slower = bool(facts) and facts["slower_percent"] > percent
    of_trials = _of_trials(record)
    if as_json:
        result = {
            "run": record.run_id,
            **verdict.to_json(),
            "trials": of_trials,
            **facts,
        }
        print(json.dumps(result, indent=1))
        return int(slower)
    if not of_trials:
        print(verdict.sentence)
    for number, of_trial in of_trials.items():
        print(f"trial {number}: {of_trial['sentence']}")
    for rank, shares in (verdict.shares or {}).items():
        print(f"rank {rank}: {in_words(shares)}")
    if facts:
        mine = seconds(facts["seconds_per_epoch"])
        other = seconds(facts["seconds_per_epoch_than"])
        print(f"an epoch took {mine}, and {other} in {facts['than']}: {facts['slower_percent']:+.0f} %")
    return int(slower)


def _find(run: str) -> RunRecord:
    """Return the run with this id, or the latest with this name."""
    try:
        return get(run)
    except LabError:
        return latest(run, state=None)


def _of_trials(record: RunRecord) -> dict[int, dict[str, Any]]:
    """Return the verdict on each trial of a sweep, by its number, as the panel made it."""
    trials = record.extra.get("trials", ())
    return {trial["number"]: trial["verdict"] for trial in trials if trial.get("verdict")}


def _compared(record: RunRecord, other: RunRecord) -> dict[str, Any]:
    """Return how much slower a run's median epoch is than another's."""
    medians = []
    for compared in (record, other):
        medians.append(median_epoch(compared) or 0.0)
        if not medians[-1]:  # or no time passed in its epochs of one step each
            raise LabError(
                f"compare the epochs of {record.run_id} and {other.run_id}",
                f"{compared.run_id} has no epoch that ended",
                "runs.table() lists the others",
            )
    mine, theirs = medians
    return {
        "seconds_per_epoch": mine,
        "than": other.run_id,
        "seconds_per_epoch_than": theirs,
        "slower_percent": 100 * (mine / theirs - 1),
    }
