"""Wrong types and values: each public call answers with an error of the lab at once, and starts nothing.

Each line of `CALLS` is one call. What Python itself refuses, such as an unknown keyword, is not here.
"""

import importlib

import pytest

from labkit.errors import LabError
from labkit.local.lab import Lab
from labkit.settings import Settings

CALLS = """
cluster.start(nodes=1.5)
cluster.start(nodes=0)
cluster.start(cpus_per_node=-1)
cluster.start(object_store_bytes="1 GB")
cluster.start(preload=["json"])
cluster.start(settings=Settings(home=FILE))
cluster.connect(3)
cluster.connect("127.0.0.1:port")
cluster.connect("127.0.0.1:1", token_file=NOTHING)
storage.start(bucket=3)
storage.start(settings=Settings(home=FILE))
storage.connect("http://127.0.0.1:1", 3, "secret")
storage.connect()
storage.connect("s3://bucket")
storage.connect("http://host/path")
storage.connect("http://127.0.0.1:1", "key", None, bucket="x")
datasets.load("imagenet")
datasets.load(split="validation")
datasets.load(n=0)
datasets.load(n=10**9)
datasets.load(n=-1)
datasets.read_rows(3)
datasets.read_rows(NOTHING)
datasets.read_rows(FILE)
datasets.shipped("nothing")
torch.parameter_distance({}, torch.cnn())
runs.latest("nothing")
runs.latest(home=NOTHING)
runs.latest(state="done")
runs.table("nothing")
runs.table(last=0)
runs.get("nothing")
panel.Panel(None)
train.TrainPanel(None)
tune.SweepPanel(None)
tune.SweepPanel("x").watch(None)
train.TrainPanel("x").watch(None)
data.DataPanel(None)
""".strip().splitlines()


class _Parts(dict):
    """The parts of labkit by name, imported when a call needs them."""

    def __missing__(self, name: str) -> object:
        local = dict.fromkeys(("cluster", "storage", "spark"), "labkit.local")
        places = {"datasets": "course", "torch": "course.models", **local}
        return importlib.import_module(f"{places.get(name, 'labkit')}.{name}")


@pytest.mark.timeout(200)  # the first one imports its engine
@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_call_is_refused_and_starts_nothing(call, tmp_path, monkeypatch):
    home = tmp_path / "home"
    for name in ("LABKIT_S3_ENDPOINT", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LABKIT_HOME", str(home))
    (tmp_path / "file").write_text("not what you expect")
    names = _Parts(Settings=Settings, FILE=str(tmp_path / "file"), NOTHING=str(tmp_path / "nothing"))
    with pytest.raises(LabError) as caught:
        eval(call, names)
    error = caught.value
    assert all(isinstance(part, str) and part.strip() for part in (error.attempt, error.fact, error.fix))
    assert len(str(error)) < 1000
    assert not Lab(home).groups()
