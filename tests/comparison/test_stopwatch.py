"""What a script of the comparison notes."""

import json
import pickle

import pytest

from labkit.comparison.stopwatch import Stopwatch, Task


def test_a_stopwatch_travels_as_its_folder(tmp_path):
    Task(epochs=3).write(tmp_path)
    watch = pickle.loads(pickle.dumps(Stopwatch(tmp_path)))
    assert watch.epochs == 3
    assert list(watch.steps([([0, 0], [1, 1])])) == [([0, 0], [1, 1])]
    (noted,) = tmp_path.glob("rank-0-*.json")
    (epoch,) = json.loads(noted.read_text())["epochs"]
    assert epoch[0] == 2


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / "run").mkdir()
    Task(epochs=2).write(tmp_path / "run")
    return tmp_path / "run"


def test_each_epoch_is_noted_for_its_rank(folder):
    watch = Stopwatch(folder)
    for _ in range(watch.epochs):
        list(watch.steps([{"image": [0] * 3, "label": [1] * 3}, {"image": [0], "label": [1]}]))
    (path,) = folder.glob("rank-1-*.json")
    noted = json.loads(path.read_text())
    assert [rows for rows, _ in noted["epochs"]] == [4, 4]
    assert noted["first_step"] > 0
    assert noted["peak_bytes"] > 1e6


def test_only_rank_0_launches_and_saves(folder):
    watch = Stopwatch(folder)
    watch.launch()
    watch.save(None)
    assert sorted(path.name for path in folder.iterdir()) == ["task.json"]


def test_the_rows_of_both_parts_are_those_that_a_sampler_deals(tmp_path):
    from torch.utils.data import DistributedSampler

    from labkit.comparison import launches
    from labkit.datasets.images import read_parquet

    assert launches.write_rows(tmp_path / "base", 300) == 256
    (tmp_path / "base" / "run").mkdir()
    Task(epochs=1).write(tmp_path / "base" / "run")
    watch = Stopwatch(tmp_path / "base" / "run")
    rows = watch.rows()
    for rank in (0, 1):
        part = read_parquet(watch.part(rank), name="x", split="train", classes=tuple("0123456789"))
        dealt = list(DistributedSampler(rows, num_replicas=2, rank=rank, shuffle=False))
        assert part.labels.tolist() == [int(rows[k][1]) for k in dealt]
