"""What a program of the comparison notes."""

import json
import pickle

import pytest

from benchmarks._engines import launch
from benchmarks._engines.stopwatch import Stopwatch
from labkit.datasets import read_rows


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    Stopwatch.prepare(tmp_path / "run", epochs=2)
    return tmp_path / "run"


def test_each_epoch_is_noted_for_its_rank_and_only_rank_0_launches_and_saves(folder):
    watch = pickle.loads(pickle.dumps(Stopwatch(folder)))
    watch.launch()
    for _ in range(watch.epochs):
        list(watch.steps([{"image": [0] * 3, "label": [1] * 3}, ([0], [1])]))
    watch.save(None)
    (path,) = set(folder.iterdir()) - {folder / "task.json"}
    noted = json.loads(path.read_text())
    assert path.name.startswith("rank-1-") and [rows for rows, _ in noted["epochs"]] == [4, 4]
    assert noted["first_step"] > 0


def test_the_rows_of_both_parts_are_those_that_a_sampler_deals(tmp_path):
    from torch.utils.data import DistributedSampler

    assert launch.write_rows(tmp_path, 300) == 256
    Stopwatch.prepare(tmp_path / "run", epochs=1)
    watch = Stopwatch(tmp_path / "run")
    rows = watch.rows()
    for rank in (0, 1):
        _, labels = read_rows(str(watch.part(rank)))
        dealt = list(DistributedSampler(rows, num_replicas=2, rank=rank, shuffle=False))
        assert labels.tolist() == [int(rows[k][1]) for k in dealt]
