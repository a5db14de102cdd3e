"""Run records: what is written is read back, by this version and by others."""

import json
import math
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from labkit.errors import RunError
from labkit.runs import index
from labkit.runs import record as records
from labkit.runs.record import RunRecord

REQUIRED = {
    "name": "03-torch", "run_id": "a1", "engine": "Ray Train", "state": "finished",
    "started_at": "2026-01-31T12:00:00+00:00",
}  # fmt: skip


def record(**changes):
    return RunRecord(**{**REQUIRED, **changes})


def test_what_is_written_is_read_back(tmp_path):
    full = record(
        workers=2,
        rows=1437,
        config={"epochs": 2, "lr": 0.1, "layers": [784, 10], "optimizer": {"name": "sgd"}},
        seconds_per_epoch=[3.0, 2.5],
        metrics={"loss": 0.14},
        history=[{"epoch": 0, "loss": 0.3}, {"epoch": 1, "loss": 0.14}],
        error="ValueError: é",
        extra={"note": "x"},
    )
    path = full.write(tmp_path / "runs" / "a1")
    assert [p.name for p in path.parent.iterdir()] == [records.FILE_NAME]
    assert records.read(path) == records.read(path.parent) == full
    assert records.read(path).epochs == 2


def test_metrics_of_any_kind_do_not_lose_the_record():
    odd = {
        "i": np.int64(3),
        "f": np.float64(0.5),
        "a": np.arange(2),
        "t": (1, 2),
        "o": object(),
        "b": "\udc80",
    }
    values = {**odd, "loss": math.nan, "best": math.inf, "numpy": np.float32("nan")}
    again = RunRecord.from_json(record(metrics=values, history=[{"epoch": 0, "best": math.inf}]).to_json())
    assert [again.metrics[k] for k in "ifat"] == [3, 0.5, [0, 1], [1, 2]]
    assert again.metrics["o"].startswith("<object")
    assert math.isnan(again.metrics["loss"]) and math.isnan(again.metrics["numpy"])
    assert again.history[0]["best"] == math.inf


def test_fields_of_a_newer_version_are_passed_over_and_those_an_older_lacks_have_defaults():
    again = RunRecord.from_json(json.dumps({**REQUIRED, "format": 9, "energy_kwh": 3}))
    assert again == record()
    assert (again.workers, again.metrics, again.versions) == (1, {}, {})


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "Expecting value"),
        (json.dumps({"name": "x"}), "run_id"),
        (json.dumps({**REQUIRED, "metrics": [1]}), "metrics"),
        (json.dumps({**REQUIRED, "started_at": "yesterday"}), "yesterday"),
        (None, "No such file"),
    ],
)
def test_a_damaged_or_missing_record_says_what_is_wrong(text, word, tmp_path):
    if text is not None:
        (tmp_path / records.FILE_NAME).write_text(text)
    with pytest.raises(RunError) as caught:
        records.read(tmp_path / records.FILE_NAME)
    assert word in caught.value.fact


def test_a_folder_that_cannot_be_written_to_is_a_run_error(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RunError, match="LABKIT_HOME"):
        record().write(tmp_path / "file" / "a1")


def test_find_gives_the_newest_first_and_passes_over_damaged_ones(tmp_path):
    runs = tmp_path / "runs"
    record(run_id="old").write(runs / "03-torch" / "old")
    # The same moment as 13:30 UTC: what counts is the time, not the text.
    record(run_id="new", started_at="2026-01-31T14:30:00+01:00").write(runs / "other" / "new")
    record(run_id="middle", started_at="2026-01-31T13:00:00Z").write(runs / "03-torch" / "middle")
    broken = runs / "03-torch" / "broken" / records.FILE_NAME
    broken.parent.mkdir()
    broken.write_bytes(b"\xff\xfe{")
    with pytest.warns(UserWarning, match="broken"):
        found = index.find(tmp_path)
    assert [r.run_id for r in found] == ["new", "middle", "old"]
    assert index.find(tmp_path / "nothing") == []


def test_find_reads_no_more_than_it_is_asked_for(tmp_path):
    """A sweep keeps its trials below ``runs``, and one damaged record must not be reported at each look."""
    for name in ("03 torch", "03/torch"):  # their folder is the same
        record(name=name, run_id=name[2]).write(records.folder_of(tmp_path, name, name[2].replace("/", "-")))
    for elsewhere in ("05-tune/sweep/trial_1/deep", "05-tune/sweep/trial_1/checkpoint_0", "other/run"):
        path = tmp_path / "runs" / elsewhere / records.FILE_NAME
        path.parent.mkdir(parents=True)
        path.write_text("damaged")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [r.name for r in index.find(tmp_path, names=["03/torch"])] == ["03/torch"]
    with pytest.warns(UserWarning, match="other/run") as told:
        assert len(index.find(tmp_path)) == 2
    assert len(told) == 1


def test_a_run_whose_process_is_gone_is_lost(tmp_path):
    code = (
        "import sys, time; from labkit.runs import record as records;"
        f"one = records.RunRecord(**{REQUIRED | {'state': 'running'}}, process=records.this_process());"
        "print(one.write(sys.argv[1]), flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        path = process.stdout.readline().strip()
        assert records.read(path).state == "running"
    finally:
        process.kill()
        process.wait()
    assert records.read(path).state == "lost"
    # A home folder may be shared by machines, and on another one the process can't be looked for.
    there = json.loads(Path(path).read_text())
    there["process"]["machine"] = "another"
    Path(path).write_text(json.dumps(there))
    assert records.read(path).state == "running"


def test_settings_are_recorded_without_secrets_and_without_data():
    class Untold:
        def __str__(self):
            raise RuntimeError("no words")

    endless: dict = {}
    endless["again"] = endless
    short = {"lr": 0.1, "max_tokens": 512, "layers": [64, 10]}
    config = {
        **short,
        "api_key": "AKIA-1",
        "store": {"secret": "hunter2", "url": "https://me:hunter2@host/x"},
        "rows": np.zeros((1000, 64)),
        "lr_found": np.float32(0.5),
        "classes": list(range(1000)),
        "loss": max,
        "kind": dict,
        "odd": Untold(),
        "endless": endless,
    }
    text = record(config=config, storage_path="s3://me:hunter2@host/runs").to_json()
    assert "AKIA" not in text and "hunter2" not in text and len(text) < 2000
    again = RunRecord.from_json(text).config
    assert again["store"] == {"secret": "(secret)", "url": "https://host/x"}
    del again["store"], again["endless"], again["api_key"]
    assert again == {
        **short, "rows": "ndarray of shape (1000, 64)", "lr_found": 0.5, "classes": "list of 1000",
        "loss": "max", "kind": "dict", "odd": "Untold",
    }  # fmt: skip
