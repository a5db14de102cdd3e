"""Exported runs are read back: from TensorBoard's files, and by MLflow."""

import math
import struct
import sys

import pytest

from labkit import runs
from labkit.errors import RunError
from labkit.runs.record import RunRecord, folder_of


def write(home, run_id, **fields):
    about = {
        "name": "03 torch",
        "engine": "e",
        "state": "finished",
        "started_at": "2026-01-31T12:00:00+00:00",
    }
    record = RunRecord(run_id=run_id, **about | fields)
    record.write(folder_of(home, record.name, run_id))
    return record


def events_of(file):
    """A file of TensorBoard has records: length (8 bytes), checksum (4), event, checksum (4)."""
    from tensorboardX.proto.event_pb2 import Event

    content = file.read_bytes()
    while content:
        end = 12 + struct.unpack("<Q", content[:8])[0]
        yield Event.FromString(content[12:end])
        content = content[end + 4 :]


def as_float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def test_tensorboard_reads_what_the_records_have(tmp_path):
    history = [{"epoch": e, "loss": 1 / (e + 3), "accuracy": e / 10, "note": "x"} for e in range(5)]
    first = write(
        tmp_path, "a", history=history, metrics={"loss": 1 / 7, "auc": 0.9}, code="def f(): ...",
        config={"lr": 0.1, "model": {"width": 64}, "name": "cnn", "flag": True}, seconds_per_epoch=[2.0] * 5,
    )  # fmt: skip
    write(tmp_path, "b", history=[{"epoch": 0, "loss": math.nan}])
    for _ in range(2):  # the second time replaces the first
        assert runs.to_tensorboard(tmp_path / "out", tmp_path) == tmp_path / "out"
    (file,) = (tmp_path / "out").glob("*/a/events.out.tfevents.*")
    scalars, texts, hyper = {}, {}, b""
    for event in events_of(file):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "hparams":
                hyper += value.metadata.plugin_data.content
            elif value.HasField("simple_value"):
                scalars.setdefault(value.tag, []).append((event.step, value.simple_value))
                started = event.wall_time - 2.0 * (event.step + 1)
                assert started == pytest.approx(first.started.timestamp())
            elif value.tensor.string_val:
                texts[value.tag] = value.tensor.string_val[0].decode()
    assert scalars == {
        "loss": [(entry["epoch"], as_float32(entry["loss"])) for entry in history],
        "accuracy": [(entry["epoch"], as_float32(entry["accuracy"])) for entry in history],
        "auc": [(4, as_float32(0.9))],
    }
    assert any("def f(): ..." in text for text in texts.values())
    assert any('"width": 64' in text and '"auc": 0.9' in text for text in texts.values())
    assert all(name in hyper for name in (b"lr", b"model.width", b"cnn", b"flag"))
    (file,) = (tmp_path / "out").glob("*/b/events.out.tfevents.*")
    (loss,) = [v.simple_value for e in events_of(file) for v in e.summary.value if v.tag == "loss"]
    assert math.isnan(loss)


def test_mlflow_reads_what_the_records_have(tmp_path):
    history = [{"epoch": e, "loss": 1 / (e + 3), "val@5": e / 10, "note": "x"} for e in range(5)]
    first = write(
        tmp_path, "a", history=history, metrics={"loss": 1 / 7, "auc": 0.9}, code="def f(): ...",
        config={"lr": 0.1, "model": {"width": 64}, "name": "cnn"}, seconds_per_epoch=[2.0] * 5,
        seconds_total=12.5, commit="abc", tags=["paper", "wide"], note="the good one",
    )  # fmt: skip
    many = {f"layer{n}": n for n in range(120)}
    long = [{"epoch": e, "loss": 1 / (e + 1)} for e in range(1001)]
    write(tmp_path, "b", state="failed", history=[*long, {"epoch": 1001, "loss": math.nan}], config=many)
    for _ in range(2):  # the second time replaces the first
        assert runs.to_mlflow(tmp_path / "out", tmp_path) == tmp_path / "out"

    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'out' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("03 torch").experiment_id
    found = {run.info.run_name: run for run in client.search_runs([experiment])}
    assert len(client.search_runs([experiment])) == len(found) == 2
    of = lambda run, name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]  # noqa: E731
    a, b = found["a"], found["b"]
    assert of(a, "loss") == [(entry["epoch"], entry["loss"]) for entry in history]
    assert of(a, "val_5") == [(entry["epoch"], entry["val@5"]) for entry in history]
    assert of(a, "auc") == [(4, 0.9)]
    last = client.get_metric_history(a.info.run_id, "loss")[-1]
    assert last.timestamp == 1000 * (first.started.timestamp() + 10)
    assert a.data.params == {"lr": "0.1", "model.width": "64", "name": "cnn"}
    assert (a.info.status, a.info.end_time - a.info.start_time) == ("FINISHED", 12_500)
    said = {
        "labkit.tags": "paper wide",
        "mlflow.source.git.commit": "abc",
        "mlflow.note.content": "the good one",
    }
    assert said.items() <= a.data.tags.items()
    texts = {path.name: path.read_text() for path in (tmp_path / "out").glob(f"**/{a.info.run_id}/**/*.*")}
    assert texts["code.py"] == "def f(): ..." and '"width": 64' in texts["record.json"]
    assert of(b, "loss")[:1001] == [(entry["epoch"], entry["loss"]) for entry in long]
    assert math.isnan(of(b, "loss")[1001][1]) and b.info.status == "FAILED"
    assert b.data.params == {name: str(value) for name, value in many.items()}


def test_a_run_is_exported_while_it_is_running(tmp_path):
    boards, flow = runs.TensorBoard(tmp_path / "boards"), runs.MLflow(tmp_path / "flow")
    history = [{"epoch": epoch, "loss": 1 / 2**epoch} for epoch in range(4)]
    for done, state in ((1, "running"), (3, "running"), (4, "finished")):
        about = {"state": state, "history": history[:done], "metrics": {"loss": 0.0, "auc": 0.9}}
        run = write(tmp_path, "a", config={"lr": 0.1}, **about)
        boards(run)
        flow(run)
        (file,) = (tmp_path / "boards").glob("*/a/events.out.tfevents.*")
        values = [(e.step, v) for e in events_of(file) for v in e.summary.value]
        assert [(step, v.simple_value) for step, v in values if v.tag == "loss"] == [
            (entry["epoch"], entry["loss"]) for entry in history[:done]
        ]
        assert any(v.tag == "auc" for _, v in values) == (state == "finished")
        experiment = flow._client.get_experiment_by_name("03 torch").experiment_id
        (found,) = flow._client.search_runs([experiment])
        losses = flow._client.get_metric_history(found.info.run_id, "loss")
        assert [one.value for one in losses] == [entry["loss"] for entry in history[:done]]
        assert found.info.status == state.upper()


@pytest.mark.parametrize("export, needs", [("to_tensorboard", "tensorboardX"), ("to_mlflow", "mlflow")])
def test_an_export_that_cannot_work_is_explained(tmp_path, monkeypatch, export, needs):
    write(tmp_path, "a")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(RunError, match="folder that you can write to"):
        getattr(runs, export)(tmp_path / "file", tmp_path)
    with pytest.raises(RunError, match="'other'"):
        getattr(runs, export)(tmp_path / "out", tmp_path, name="other")
    monkeypatch.setitem(sys.modules, needs, None)
    with pytest.raises(RunError, match=f"pip install {needs}"):
        getattr(runs, export)(tmp_path / "out", tmp_path)
