"""What ``pip install .`` brings: next to Ray and torch three packages, and a panel that works with them.

The environments are real and need no network: links to what is installed here, one for each package that they
should have, and the wheel of labkit.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from packaging.requirements import Requirement

from labs import plain_head
from requirements import PROJECT, entries, needed

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/panel/", "labkit/worker/")]


ROOT = Path(__file__).resolve().parent.parent
ENGINES = ("ray[train]", "torch")
DECLARED = PROJECT["dependencies"]
PROGRAM = """
import os, ray, ray.train, torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader, TensorDataset
from labkit import runs, storage
from labkit.errors import LabError
from labkit.train import TrainPanel

def loop(config):
    model = prepare_model(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
    loader = prepare_data_loader(DataLoader(data, batch_size=16))
    for epoch in range(config["epochs"]):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        ray.train.report({"loss": loss.item()})

ray.init(num_cpus=3, include_dashboard=False)
trainer = TorchTrainer(
    loop,
    train_loop_config={"epochs": 2},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=os.environ["LABKIT_HOME"]),
)
with TrainPanel("light").watch(trainer):
    trainer.fit()
record = runs.latest("light")
print("record:", record.state, record.epochs, "loss" in record.metrics)
try:
    storage.connect("http://127.0.0.1:1", "key", "secret")
except LabError as error:
    print(error)
"""
ON_A_CLUSTER = PROGRAM.replace("from labkit import runs", "from labkit import cluster, runs").replace(
    "ray.init(num_cpus=3, include_dashboard=False)", "cluster.connect(os.environ['HEAD'])"
)
CELL = """
from labkit.panel import Panel
from labkit.worker import hooks
with Panel("one-process", epochs=3) as panel:
    for epoch in range(3):
        hooks.current().begin_epoch(5)
        for step in range(5):
            hooks.current().step(10, loss=1 / (epoch + 1))
        hooks.current().end_epoch()
        panel.report({"loss": 1 / (epoch + 1)})
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    copy = tmp_path_factory.mktemp("source")
    for folder in ("labkit", "course"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "."]
    subprocess.run([*command, "--wheel-dir", copy / "wheel"], cwd=copy, check=True, timeout=800)
    return next((copy / "wheel").glob("*.whl"))


@pytest.fixture
def environment(tmp_path, wheel):
    """environment(requirement, …): the Python of an environment with these and labkit, and nothing else."""

    def _environment(*lines: str) -> Path:
        venv.create(tmp_path / "light", with_pip=False)
        (site,) = (tmp_path / "light" / "lib").glob("python*/site-packages")
        for entry in entries(lines):
            (site / entry).symlink_to(Path(sysconfig.get_path("purelib")) / entry)
        zipfile.ZipFile(wheel).extractall(site)
        return tmp_path / "light" / "bin" / "python"

    return _environment


def run(python: Path, code: str, home: Path, **more: str) -> subprocess.CompletedProcess:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"LABKIT_HOME": str(home), "RAY_TMPDIR": str(home), "LABKIT_PANEL": "auto"} | more
    command = [python, "-c", code]
    return subprocess.run(command, env=variables, cwd=home, capture_output=True, text=True, timeout=800)


@pytest.mark.each_change
def test_it_is_small_and_has_no_upper_bounds(wheel):
    assert not [line for line in DECLARED if Requirement(line).specifier]
    # What pip brings beyond Ray and torch, with labkit itself: the limit is 12 packages, 40 MB.
    more = needed(DECLARED) - needed(ENGINES)
    sizes = [file.size or 0 for name in more for file in metadata.distribution(name).files]
    assert len(more) + 1 <= 12
    assert sum(sizes) + sum(entry.file_size for entry in zipfile.ZipFile(wheel).infolist()) < 40e6


def test_a_run_on_a_plain_ray_in_a_terminal(environment, home):
    done = run(environment(*DECLARED, *ENGINES), PROGRAM, home)
    assert "record: finished 2 True" in done.stdout, done.stdout + done.stderr[-3000:]
    assert "light: epoch 2/2 · loss" in done.stdout
    assert "s3fs is not installed" in done.stdout and "-m pip install s3fs" in done.stdout


def test_a_run_on_a_cluster_of_a_plain_ray_start(environment, home):
    python = environment(*DECLARED, "ray[default,train]", "torch")
    with plain_head(home / "plain", 3, python, RAY_AUTH_MODE="disabled") as address:
        done = run(python, ON_A_CLUSTER, home, HEAD=address)
    assert "record: finished 2 True" in done.stdout, done.stdout + done.stderr[-3000:]
    assert "light: epoch 2/2 · loss" in done.stdout


def test_the_wheel_has_neither_this_machines_part_nor_the_lessons(environment, tmp_path):
    python = environment(*DECLARED)
    for name in ("labkit.local", "course"):
        assert f"No module named '{name}'" in run(python, f"import {name}", tmp_path).stderr
    shown = run(python, "from labkit.__main__ import main; main(['--help'])", tmp_path).stdout
    assert "check" in shown and "doctor" not in shown


def test_without_an_engine_there_is_a_panel_and_a_record(environment, tmp_path):
    table = "from labkit import runs\nprint(runs.latest('one-process').state)\nruns.table()"
    done = run(environment(*DECLARED), CELL + table, tmp_path)
    assert done.stdout.endswith("finished\n") and " 3 epochs · loss 0.333" in done.stdout
    assert "because pandas is not installed" in done.stderr


def test_a_notebook_without_ipywidgets_shows_the_panel_too(environment, tmp_path, monkeypatch):
    python = environment(*DECLARED, "ipykernel")
    spec = tmp_path / "jupyter" / "kernels" / "light" / "kernel.json"
    spec.parent.mkdir(parents=True)
    arguments = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": arguments, "display_name": "light", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    NotebookClient(notebook, kernel_name="light", timeout=800).execute(cwd=tmp_path)
    (shown,) = notebook.cells[0].outputs
    assert "lk-card" in shown["data"]["text/html"] and "finished" in shown["data"]["text/plain"]
