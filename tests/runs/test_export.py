"""Exported runs are read back by TensorFlow, which TensorBoard's format comes from."""

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


def as_float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def test_tensorboard_reads_what_the_records_have(tmp_path):
    from tensorflow.compat.v1.train import summary_iterator

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
    for event in summary_iterator(str(file)):
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
    (loss,) = [
        v.simple_value for e in summary_iterator(str(file)) for v in e.summary.value if v.tag == "loss"
    ]
    assert math.isnan(loss)


def test_an_export_that_cannot_work_is_explained(tmp_path, monkeypatch):
    write(tmp_path, "a")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(RunError, match="folder that you can write to"):
        runs.to_tensorboard(tmp_path / "file", tmp_path)
    with pytest.raises(RunError, match="'other'"):
        runs.to_tensorboard(tmp_path / "out", tmp_path, name="other")
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(RunError, match="pip install tensorboardX"):
        runs.to_tensorboard(tmp_path / "out", tmp_path)
