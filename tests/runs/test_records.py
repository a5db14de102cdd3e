"""Run records: what is written is read back, by this version and by others; no secret and no mark is lost."""

import json
import math
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from labkit import runs
from labkit.errors import LabError
from labkit.panel import Panel
from labkit.runs import record as records
from labkit.runs.record import RunRecord
from labkit.settings import Settings

REQUIRED = {
    "name": "03-torch", "run_id": "a1", "engine": "Ray Train", "state": "finished",
    "started_at": "2026-01-31T12:00:00+00:00",
}  # fmt: skip
OLD = Path(__file__).with_name("records_0_1_0")


def record(**changes):
    return RunRecord(**REQUIRED | changes)


def test_what_is_written_is_read_back(tmp_path):
    full = record(
        workers=2,
        rows=1437,
        config={"epochs": 2, "lr": 0.1, "layers": [784, 10], "optimizer": {"name": "sgd"}},
        seconds_per_epoch=[3.0, 2.5],
        metrics={"loss": 0.14},
        history=[{"epoch": 0, "loss": 0.3}, {"epoch": 1, "loss": 0.14}],
        error="ValueError: é",
    )
    path = full.write(tmp_path / "runs" / "a1")
    assert records.read(path) == records.read(path.parent) == full
    assert records.read(path.rename(tmp_path / "another.json")) == full  # as benchmarks write it
    with pytest.raises(LabError, match="No such file"):
        records.read(tmp_path / "nothing")
    with pytest.raises(LabError, match="LABKIT_HOME"):
        record().write(tmp_path / "another.json" / "a1")


def test_the_records_of_version_0_1_0_are_read(tmp_path):
    """That version wrote them: runs that finished, diverged, failed and were killed, and a sweep."""
    shutil.copytree(OLD, tmp_path / "runs")
    table = runs.table(tmp_path, columns="all")
    assert list(table["run"]) == ["00-lost", "05-sweep", "03-torch", *["00-baseline"] * 3]
    assert list(table["state"])[1:] == ["finished", "finished", "failed", "finished", "finished"]
    assert list(table["config seed" if "config seed" in table else "seed"])[-2] > 2**100
    assert math.isinf(table["loss"][5]) and math.isnan(table["loss"][4])
    first = runs.latest(home=tmp_path, tag="paper")
    assert (first.tags, first.note, first.epochs) == (["paper", "good"], "was too fast", 2)
    assert first.config == {
        "lr": 0.1, "seed": 3, "model": {"width": 64}, "api_key": "(secret)", "rows": "list of 99",
    }  # fmt: skip
    assert first.code.startswith("def loop") or first.code
    sweep, torch = runs.latest("05-sweep", tmp_path), runs.latest("03-torch", tmp_path)
    assert len(sweep.extra["trials"]) == 2 and torch.scaling["num_workers"] == 2
    assert torch.checkpoint.startswith(torch.storage_path) and torch.seconds["training"] > 0
    assert "config.seed" in runs.compare(first, torch).table.index
    page = runs.report(tmp_path / "page.html", tmp_path, title="old", by="lr").read_text()
    assert "was too fast" in page
    assert runs.tag(first, "good", remove=True, home=tmp_path) == ["paper"]
    assert runs.get(first.run_id, tmp_path).note == "was too fast"


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
    again = RunRecord.from_json(json.dumps(REQUIRED | {"format": 9, "energy_kwh": 3}))
    assert again == record()
    assert (again.workers, again.metrics, again.versions) == (1, {}, {})


DAMAGED = [
    ("", "Expecting value"),
    ('{"name": "03-torch", "run_id', "Unterminated string"),
    ("[" * 100_000, "while decoding a JSON array"),
    ("[1]", ""),  # Pythons differ in what they say
    (json.dumps({"name": "x"}), "run_id"),
    (json.dumps(REQUIRED | {"metrics": [1]}), "metrics"),
    (json.dumps(REQUIRED | {"history": [1]}), "history"),
    (json.dumps(REQUIRED | {"seconds_per_epoch": ["1"]}), "seconds_per_epoch"),
    (json.dumps(REQUIRED | {"rows_per_second": 10**400}), "rows_per_second"),
    (json.dumps(REQUIRED | {"started_at": "0001-01-01"}), "0001"),
    (b"\xff\xfe{", "decode"),
]


@pytest.mark.parametrize(("text", "word"), DAMAGED)
def test_a_damaged_record_says_what_is_wrong_and_hides_no_other(text, word, tmp_path):
    record(run_id="whole").write(records.folder_of(tmp_path, "03-torch", "whole"))
    path = records.folder_of(tmp_path, "03-torch", "a1") / records.FILE_NAME
    path.parent.mkdir()
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(LabError) as caught:
        records.read(path)
    assert word in caught.value.fact and str(path.parent) in caught.value.fix
    with pytest.warns(UserWarning, match="a1"):
        assert list(runs.table(tmp_path)["id"]) == ["whole"]


def test_find_gives_the_newest_first(tmp_path):
    folder = tmp_path / "runs"
    record(run_id="old").write(folder / "03-torch" / "old")
    # The same moment as 13:30 UTC: what counts is the time, not the text.
    record(run_id="new", started_at="2026-01-31T14:30:00+01:00").write(folder / "other" / "new")
    record(run_id="middle", started_at="2026-01-31T13:00:00Z").write(folder / "03-torch" / "middle")
    (folder / ".index.json").write_text("of version 0.1.0")
    assert [r.run_id for r in records.find(tmp_path)] == ["new", "middle", "old"]
    assert [r.run_id for r in records.find(tmp_path, names=["03-torch"])] == ["middle", "old"]
    assert records.find(tmp_path / "nothing") == []


@pytest.mark.parametrize("name", ["../../up", "größe/lr=0.1 第一 🚀", "x" * 300, ".."])
def test_any_name_has_a_folder_below_runs(name, tmp_path):
    for other in ("03 torch", "03/torch", name):  # the folder of the first two is the same
        record(name=other, run_id=str(len(other))).write(records.folder_of(tmp_path, other, str(len(other))))
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
    for damaged in ({}, {"pid": "x"}, {"pid": 2**70, "created": 1.0, "boot": ""}):
        Path(path).write_text(json.dumps(there | {"process": damaged}))
        assert records.read(path).state == "lost"


def test_settings_are_recorded_without_secrets_and_without_data():
    class Untold:
        def __str__(self):
            raise RuntimeError("no words")

    endless: dict = {}
    endless["again"] = endless
    short = {"lr": 0.1, "max_tokens": 512, "layers": [64, 10], "monkey": "a banana", "keys": 3}
    names = ["api_key", "apiKey", "APIKEY", "hf-token", "authToken", "AWS_SECRET_ACCESS_KEY", "db password"]
    secrets = dict.fromkeys(names, "AKIA-1") | {"token": b"AKIA-1", "tokens": ["AKIA-1"]}
    config = short | {
        **secrets,
        "store": {"secret": "hunter2", "url": "https://me:hunter2@host/x"},
        "rows": np.zeros((1000, 64)),
        "lr_found": np.float32(0.5),
        "classes": list(range(1000)),
        "loss": max,
        "kind": dict,
        "odd": Untold(),
        "endless": endless,
        "huge": 10**5000,
    }
    text = record(config=config, storage_path="s3://me:hunter2@host/runs").to_json()
    assert "AKIA" not in text and "hunter2" not in text and len(text) < 2500
    again = RunRecord.from_json(text).config
    assert again["store"] == {"secret": "(secret)", "url": "https://host/x"}
    for name in ("store", "endless", *secrets):
        del again[name]
    assert again == short | {
        "rows": "ndarray of shape (1000, 64)", "lr_found": 0.5, "classes": "list of 1000",
        "loss": "max", "kind": "dict", "odd": "Untold", "huge": "int of 16610 bits",
    }  # fmt: skip


def test_tags_and_notes_are_found_again(tmp_path):
    for run_id in "ab":
        record(run_id=run_id).write(records.folder_of(tmp_path, "03-torch", run_id))
    assert runs.tag("a", "paper", "good", home=tmp_path) == ["paper", "good"]
    assert runs.tag("a", "good", remove=True, home=tmp_path) == ["paper"]
    runs.note("a", "was too fast", home=tmp_path)
    assert list(runs.table(tmp_path, tag=["paper", "other"])["id"]) == ["a"]
    table = runs.table(tmp_path).set_index("id")
    assert (table.loc["a", "tags"], table.loc["a", "note"]) == ("paper", "was too fast")
    with pytest.raises(LabError, match="run_id='c'"):
        runs.tag("c", "x", home=tmp_path)


def test_a_running_run_and_those_who_mark_it_do_not_overwrite_each_other(tmp_path):
    """The panel writes the whole record again and again; here it does so from before the marks."""
    with Panel("own", settings=Settings(home=tmp_path, panel="none")) as panel:
        folder = records.folder_of(tmp_path, "own", panel.run_id)
        before = records.read(folder)
        marking = [
            threading.Thread(target=runs.tag, args=(panel.run_id, f"tag-{n}"), kwargs={"home": tmp_path})
            for n in range(8)
        ]
        for thread in marking:
            thread.start()
        runs.note(panel.run_id, "watch this", home=tmp_path)
        for thread in marking:
            thread.join()
        before.write(folder)
        assert len(records.read(folder).tags) == 8
        runs.tag(panel.run_id, *(f"tag-{n}" for n in range(7)), remove=True, home=tmp_path)
    found = runs.get(panel.run_id, tmp_path)
    assert (found.state, found.tags, found.note) == ("finished", ["tag-7"], "watch this")
