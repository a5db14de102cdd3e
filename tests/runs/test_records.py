"""Run records: what is written is read back; no secret gets into one, and no note is lost."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from course.datasets import Dataset
from labkit import runs
from labkit.errors import Damaged, LabError
from labkit.panel import Panel
from labkit.runs import record as records
from labkit.runs.record import RunRecord, git_commit
from labkit.settings import Settings
from records import record, write

REQUIRED = {name: getattr(record(), name) for name in ("name", "run_id", "engine", "state", "started_at")}


def test_a_damaged_note_is_named(tmp_path):
    path = record().write(tmp_path / "runs" / "a1")
    note = path.with_name(records.NOTE_NAME)
    note.write_text("{")
    with pytest.raises(Damaged, match=records.NOTE_NAME) as damaged:
        records.read(path)
    assert f"delete {note} " in damaged.value.fix


def test_what_is_written_is_read_back(tmp_path):
    full = record(
        workers=2, rows=1437, config={"epochs": 2, "layers": [784, 10], "optimizer": {"name": "sgd"}},
        seconds_per_epoch=[3.0, 2.5], metrics={"loss": 0.14}, history=[{"epoch": 0, "loss": 0.3}], error="é",
    )  # fmt: skip
    path = full.write(tmp_path / "runs" / "a1")
    assert records.read(path) == full
    assert records.read(path.rename(tmp_path / "another.json")) == full  # as benchmarks write it
    newer = RunRecord.from_json(json.dumps(REQUIRED | {"format": 9, "energy_kwh": 3}))
    assert newer == record() and (newer.workers, newer.metrics, newer.versions) == (1, {}, {})
    with pytest.raises(LabError, match="No such file"):
        records.read(tmp_path / "nothing")
    with pytest.raises(LabError, match="LABKIT_HOME"):
        record().write(tmp_path / "another.json" / "a1")


def test_a_notebook_shows_a_record_in_one_line():
    shown = record(
        name="03", run_id="a1", seconds_total=72.4, workers=2, epochs=3, metrics={"loss": 0.14}, note="warm"
    )
    assert repr(shown) == (
        "<run 03 (a1): finished after 72 s · Ray Train · 2 workers · 3 epochs · loss 0.140 · warm>"
    )


def test_metrics_of_any_kind_do_not_lose_the_record():
    odd = {"i": np.int64(3), "f": np.float64(0.5), "a": np.arange(2), "t": (1, 2), "o": object()}
    values = {**odd, "b": "\udc80", "loss": math.nan, "best": math.inf, "numpy": np.float32("nan")}
    again = RunRecord.from_json(record(metrics=values, history=[{"epoch": 0, "best": math.inf}]).to_json())
    assert [again.metrics[k] for k in "ifat"] == [3, 0.5, [0, 1], [1, 2]]
    assert again.metrics["o"].startswith("<object")
    assert math.isnan(again.metrics["loss"]) and math.isnan(again.metrics["numpy"])
    assert again.history[0]["best"] == math.inf


DAMAGED = [
    ("", "Expecting value"),
    ('{"name": "03-torch", "run_id', "Unterminated string"),
    ("[" * 100_000, "nested too deeply"),
    ("[1]", "no object but a list"),
    (json.dumps({"name": "x"}), "run_id"),
    (json.dumps(REQUIRED | {"metrics": [1]}), "metrics"),
    (json.dumps(REQUIRED | {"started_at": "soon"}), "soon"),
    (b"\xff\xfe{", "decode"),
]


@pytest.mark.parametrize(("text", "word"), DAMAGED)
def test_a_damaged_record_says_what_is_wrong_and_hides_no_other(text, word, tmp_path):
    write(tmp_path, run_id="whole")
    path = records.folder_of(tmp_path, "03-torch", "a1") / records.FILE_NAME
    path.parent.mkdir()
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(LabError) as caught:
        records.read(path)
    assert word in caught.value.fact and str(path.parent) in caught.value.fix
    with pytest.warns(UserWarning, match="a1"):
        assert list(runs.table(home=tmp_path)["id"]) == ["whole"]


@pytest.mark.parametrize("name", ["../../up", "größe/lr=0.1 第一 🚀", "x" * 300, ".."])
def test_any_name_has_a_folder_below_runs(name, tmp_path):
    for other in ("03 torch", "03/torch", name):  # the folder of the first two is the same
        write(tmp_path, name=other, run_id=str(len(other)))
    assert runs.latest(name, tmp_path).name == name
    assert len(list((tmp_path / "runs").iterdir())) == 2 and [p.name for p in tmp_path.iterdir()] == ["runs"]


def test_a_run_whose_process_is_gone_is_lost(tmp_path):
    code = (
        "import sys, time; from labkit.runs import record as records;"
        f"one = records.RunRecord(**{REQUIRED | {'state': 'running'}}, process=records.this_process());"
        "print(one.write(sys.argv[1]), flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        path = Path(process.stdout.readline().strip())
        assert records.read(path).state == "running"
    finally:
        process.kill()
        process.wait()
    assert records.read(path).state == "lost"
    # A home folder may be shared by machines, and on another one the process can't be looked for.
    there = json.loads(path.read_text())
    there["process"]["machine"] = "another"
    path.write_text(json.dumps(there))
    assert records.read(path).state == "running"
    hours_ago = time.time() - 7200  # and a container has another name each time, while a run writes all along
    os.utime(path, (hours_ago, hours_ago))
    assert records.read(path).state == "lost"
    for damaged in ({}, {"pid": "x"}, {"pid": 2**70, "created": 1.0, "boot": ""}):
        path.write_text(json.dumps(there | {"process": damaged}))
        assert records.read(path).state == "lost"


def test_settings_are_recorded_without_secrets_and_without_data():
    class Untold:
        def __str__(self):
            raise RuntimeError("no words")

    endless: dict = {}
    endless["again"] = endless
    kept = {"lr": 0.1, "max_tokens": 512, "layers": [64, 10], "monkey": "a banana", "keys": 3}
    names = ["api_key", "apiKey", "APIKEY", "hf-token", "authToken", "AWS_SECRET_ACCESS_KEY", "db password"]
    secrets = dict.fromkeys(names, "AKIA-1") | {"token": b"AKIA-1", "tokens": ["AKIA-1"], "endless": endless}
    secrets["store"] = {"secret": "hunter2", "url": "https://me:hunter2@host/x"}
    odd = {
        "rows": (np.zeros((1000, 64)), "ndarray of shape (1000, 64)"), "lr_found": (np.float32(0.5), 0.5),
        "classes": (list(range(1000)), "list of 1000"), "loss": (max, "max"), "kind": (dict, "dict"),
        "odd": (Untold(), "Untold"),
    }  # fmt: skip
    config = kept | secrets | {name: value for name, (value, _) in odd.items()}
    text = record(config=config, storage_path="s3://me:hunter2@host/runs").to_json()
    assert "AKIA" not in text and "hunter2" not in text and len(text) < 2500
    again = RunRecord.from_json(text).config
    assert again["store"] == {"secret": "(secret)", "url": "https://host/x"}
    shown = {name: short for name, (_, short) in odd.items()}
    assert {name: again[name] for name in (*kept, *odd)} == kept | shown


def test_a_note_is_found_again_and_a_running_run_does_not_overwrite_it(tmp_path):
    with Panel("own", settings=Settings(home=tmp_path, panel="none")) as panel:
        before = runs.get(panel.run_id, tmp_path)
        runs.note(panel.run_id, "was too fast", home=tmp_path)
        runs.note(before.run_id, "was too slow", home=tmp_path)
        before.write(before.folder)  # the panel writes the whole record again and again
        assert runs.get(panel.run_id, tmp_path).note == "was too slow"
    latest = runs.latest("own", tmp_path)
    assert (latest.note, latest.state) == ("was too slow", "finished")
    assert runs.table(home=tmp_path).loc[1, "note"] == "was too slow"
    with pytest.raises(LabError, match="no run has this id"):
        runs.note("c", "x", home=tmp_path)


# -- where a run comes from ---------------------------------------------------------------------------


def git(*command, folder):
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@y", *command]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_the_one_that_git_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert git_commit() is None
    git("init", "-q", folder=tmp_path)
    assert git_commit() is None  # no commit yet
    git("commit", "-q", "--allow-empty", "-m", "first", folder=tmp_path)
    assert git_commit() == git("rev-parse", "HEAD", folder=tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # a machine without git
    assert git_commit() is None


def test_a_panel_records_code_seed_and_data(tmp_path):
    written = []
    for first, options in ((0, {"config": {"seed": 7, "rows": [0] * 100}}), (1, {"seed": 3})):
        images = np.full((4, 28, 28), first, np.uint8)
        data = Dataset(images, np.zeros(4, np.int64), "digits", "train", ("a",))
        with Panel("own", dataset=data, settings=Settings(home=tmp_path, panel="none"), **options):
            pass
        written.append(runs.latest("own", tmp_path))
        assert (written[-1].dataset, written[-1].data_fingerprint) == ("digits", data.fingerprint)
    assert "def test_a_panel_records_code_seed_and_data" in written[0].code
    assert (written[0].seed, written[0].config["rows"], written[1].seed) == (7, "list of 100", 3)
    assert written[0].versions["python"] and written[0].host["cpus"]


@pytest.mark.parametrize(
    ("history", "epochs"),
    [
        ([0, 1, 2], 3),
        ([0, 0, 1, 1], 2),  # two reports an epoch
        ([0, 0, 0.5, 1, 1.5, 2], 3),  # every half epoch
        ([3, 4], 2),  # of a run that went on
        ([], 0),
    ],
)
def test_epochs_are_counted_once(history, epochs):
    assert record(history=[{"epoch": epoch} for epoch in history]).epochs == epochs
