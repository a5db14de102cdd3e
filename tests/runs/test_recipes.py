"""docs/runs.md: its examples are taken from the page and run, and TensorBoard's files have the values."""

import re
import struct
import time

import matplotlib.pyplot as plt
import pandas
import pytest
from tensorboardX.proto.event_pb2 import Event

from labkit import runs
from records import write


def scalars(folder):
    """(name, step, value) of all event files: records of a length, its checksum, data, and their checksum."""
    values = []
    for path in folder.rglob("*tfevents*"):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + length])
            values += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
            data = data[16 + length :]
    return values


def test_what_pandas_does_with_the_table(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "agg")
    for minute, (lr, loss) in enumerate([(0.1, 0.5), (0.1, 0.3), (0.2, 0.4)]):
        history = [{"epoch": 0, "loss": 1.0}, {"epoch": 1, "loss": loss}]
        write(tmp_path, minute, config={"lr": lr}, metrics={"loss": loss}, history=history)
    page = (root / "docs" / "runs.md").read_text()
    lines, curves = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:2]
    scope = {"runs": runs, "pandas": pandas, "plt": plt}
    exec(lines + curves, scope)
    table = scope["table"]
    assert len(table[table["lr"] == 0.1]) == 2 and table.nsmallest(1, "loss")["id"].item() == "run-1"
    assert pandas.read_csv("runs.csv")["loss"].tolist() == [0.4, 0.3, 0.5]
    assert [line.get_label() for line in plt.gca().get_lines()] == ["run-2", "run-1", "run-0"]
    plt.close()


def test_the_recipe_for_tensorboard_writes_each_epoch_once(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("labkit.panel.base._KEEP_EVERY", 0.01)
    blocks = re.findall(r"```python\n(.*?)```", (root / "docs" / "runs.md").read_text(), re.DOTALL)
    (recipe,) = [block for block in blocks if "tensorboardX" in block]
    scope = {}
    exec(recipe, scope)
    panel, losses = scope["panel"], [0.5, 0.25, float("nan")]
    with panel:
        for epoch, loss in enumerate(losses):
            panel.report({"loss": loss, "word": "no number", "epoch": epoch})
            time.sleep(0.05)
    expected = [("loss", epoch, pytest.approx(loss, nan_ok=True)) for epoch, loss in enumerate(losses)]
    assert scalars(tmp_path / "tensorboard" / "own") == expected
    scope["tensorboard"]("tensorboard/old")(runs.latest("own"))
    assert scalars(tmp_path / "tensorboard" / "old") == expected
