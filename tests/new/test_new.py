"""`python -m labkit new`: what it writes runs unchanged, and what it cannot do it says."""

import os
import subprocess
import sys

import jupytext
import numpy as np
import pandas
import pytest
from PIL import Image

from labkit import runs
from labkit.__main__ import main
from labs import until


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in, with a folder of images, a table and a text."""
    monkeypatch.chdir(tmp_path)
    numbers = np.random.default_rng(0)
    for name, light in (("cat", 40), ("dog", 200)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(40):
            pixels = numbers.integers(light - 30, light + 30, (20, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    size = numbers.normal(size=200)
    table = pandas.DataFrame(
        {"size": size, "colour": numbers.choice(["red", "blue"], 200), "stars": size // 1}
    )
    table.assign(big=np.where(size > 0, "yes", "no")).to_csv("table.csv", index=False)
    (tmp_path / "EXPERIMENT.csv").write_bytes((tmp_path / "table.csv").read_bytes())
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 200)
    return tmp_path


def python(*arguments, **env):
    return subprocess.run(
        [sys.executable, *arguments], env=os.environ | env, capture_output=True, text=True, timeout=250
    )


def test_each_kind_passes_its_own_tests(here, root):
    """In one process: most of the time goes into importing torch and Ray."""
    arguments = {
        "made": [],
        "pictures": ["--data", "folder:photos"],
        "names": ["--data", "table:EXPERIMENT.csv:big", "--categories", "colour"],
        "amounts": ["--data", "table:table.csv:stars", "--task", "regression", "--drop", "big", "colour"],
        "words": ["--data", "text:text.txt", "--task", "language"],
    }
    for name, given in arguments.items():
        assert main(["new", name, *given]) == 0
        files = sorted([f"{name}.ipynb", f"{name}.py", f"test_{name}.py"])
        assert sorted(file.name for file in (here / name).iterdir()) == files
        script, notebook = (jupytext.read(here / name / file) for file in (f"{name}.py", f"{name}.ipynb"))
        cells = [(cell.cell_type, cell.source) for cell in script.cells]
        assert cells == [(cell.cell_type, cell.source) for cell in notebook.cells]
        text = (here / name / f"{name}.py").read_text()
        assert "tags=" not in text and "DATA" not in text and len(text.splitlines()) < 210
        for once in ("def load_data", "def facts", "class Network", "def values("):
            assert text.count(once) == 1
    tests = (f"{name}/test_{name}.py" for name in arguments)
    done = python("-m", "pytest", "-q", *tests, PYTHONPATH=str(root), PYTEST_ADDOPTS="")
    assert done.returncode == 0 and "15 passed" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["made"], "nothing is overwritten"),
        (["my-experiment"], "could not import a module"),
        (["class"], "could not import a module"),
        (["test_x"], "must not begin with test_"),
        (["x", "--data", "photos"], "use --data folder:PATH, table:PATH:TARGET or text:PATH"),
        (["x", "--data", "table:table.csv"], "table:PATH:TARGET"),
        (["x", "--data", "folder:nowhere"], "there is no such folder"),
        (["x", "--data", "table:table.csv:price"], "no column 'price'"),
        (["x", "--data", "table:table.csv:stars"], "classes, or amounts?"),
        (["x", "--data", "folder:photos", "--task", "regression"], "is for classification"),
        (["x", "--task", "language"], "is for regression"),
        (["x", "--data", "table:table.csv:stars", "--drop", "id"], "no column 'id'"),
        (["x", "--data", "folder:photos", "--drop", "id"], "should be a column, and --data isn't a table"),
    ],
)
def test_what_cannot_be_made(here, capsys, arguments, said):
    (here / "made").mkdir()
    assert main(["new", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not (here / "x").exists()


def test_a_damaged_image_is_found_before_anything_is_written(here, capsys):
    image = next((here / "photos").rglob("*.png"))
    image.write_bytes(image.read_bytes()[:45])  # its header is whole
    assert main(["new", "x", "--data", "folder:photos"]) == 2
    assert f"{image.name}: image file is truncated" in capsys.readouterr().err
    assert not (here / "x").exists()


def test_not_among_the_lessons(here, monkeypatch, capsys):
    (here / "notebooks").mkdir()
    monkeypatch.chdir(here / "notebooks")
    assert main(["new", "mine"]) == 2 and "folder of the lessons" in capsys.readouterr().err


@pytest.mark.timeout(400)  # a cluster starts twice, on a machine that may be busy
def test_the_script_trains_on_two_workers_and_continues_when_it_was_killed(here, root):
    main(["new", "flats"])
    script, home, said = here / "flats" / "flats.py", here / "home", here / "said.txt"
    script.write_text(script.read_text().replace('"epochs": 8', '"epochs": 40'))
    variables = {"PYTHONPATH": str(root), "LABKIT_HOME": str(home), "LABKIT_WORKERS": "2", "LABKIT_GPU": "0"}
    with said.open("w") as output:
        first = subprocess.Popen([sys.executable, "-u", script], env=os.environ | variables, stdout=output)
        until(lambda: "epoch 5/40" in said.read_text(), 200)
        first.kill()
        first.wait()
    done = python(str(script), **variables)
    assert done.returncode == 0, done.stderr
    lost, record = runs.latest("flats", home, state="lost"), runs.latest("flats", home)
    assert f"{lost.run_id} was killed: continuing after its latest checkpoint" in done.stdout
    assert "on the test rows: {'loss': " in done.stdout and "predicted" in done.stdout
    epochs = [entry["epoch"] for entry in record.history]
    assert epochs == list(range(epochs[0], 40)) and epochs[0] >= 4
    assert record.workers == 2 and record.storage_path == lost.storage_path
    assert record.history[-1]["loss"] < 0.1  # of targets whose variance is 1
