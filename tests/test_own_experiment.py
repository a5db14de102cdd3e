"""The templates in notebooks/own_experiment, each copied to an empty folder and run as a reader runs it.

They share a cluster: a script uses that of its home, and at its end leaves it to those that still use it.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jupytext
import numpy as np
import pandas
import pytest
from nbclient import NotebookClient
from PIL import Image

from labkit import runs
from labs import until

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = ROOT / "notebooks" / "own_experiment"
LAB = {"cpus_per_node": 3}


@pytest.fixture
def here(lab, tmp_path, monkeypatch):
    """An empty folder to work in, and the environment of a reader."""
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    for name, value in {"LABKIT_WORKERS": "2", "LABKIT_GPU": "0", "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def copy(name: str, old: str = "", new: str = "") -> Path:
    """Copy a template into the current folder, with one text replaced."""
    text = (TEMPLATES / name).read_text(encoding="utf-8")
    assert old in text
    path = Path(name)
    path.write_text(text.replace(old, new) if old else text, encoding="utf-8")
    return path


def run(*command: object) -> str:
    """What a script prints."""
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    return done.stdout


def on_test_rows(printed: str, metric: str) -> float:
    """The metric on the test rows, which is the note of the newest run, too."""
    said, value = re.search(rf"on \d+ test rows: ({metric} (\S+))", printed).groups()
    newest = runs.table(last=1, columns=["note", "state", "workers"]).iloc[0]
    assert list(newest) == [f"test: {said}", "finished", 2]
    return float(value)


def test_images_as_they_are_and_a_folder_of_photos(here):
    script = copy("images.py")
    assert on_test_rows(run(script), "accuracy") > 0.9
    rng = np.random.default_rng(0)
    for number in range(120):
        folder = here / "photos" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 80, (20 + number % 3, 24, 3), dtype=np.uint8)
        pixels[:, :, number % 2] += 120  # cats are red, dogs are green
        Image.fromarray(pixels).save(folder / f"{number}.jpg")
    assert on_test_rows(run(script, "photos"), "accuracy") > 0.9
    assert list(runs.table(name="images")["data"]) == ["photos", "digits"]


def test_a_table_and_a_run_of_it_that_was_killed_resumes(here, home):
    script, printed = copy("table.py", '"epochs": 10', '"epochs": 60'), here / "printed.txt"
    with printed.open("w") as output:
        killed = subprocess.Popen([sys.executable, "-u", script], stdout=output)
        until(lambda: "epoch 5/60" in printed.read_text())
        killed.kill()
        killed.wait()
    assert 20 < on_test_rows(run(script, "--resume"), "rmse") < 40  # 25 of it is noise
    lost, resumed = runs.latest("table", state="lost"), runs.latest("table")
    assert resumed.storage_path == lost.storage_path
    epochs = [entry["epoch"] for entry in resumed.history]
    assert epochs == list(range(epochs[0], 60)) and epochs[0] >= 4
    # The test rows were measured with the best checkpoint, and only that and the latest are kept.
    assert resumed.metrics["rmse"] < 40


def test_rows_that_belong_together_stay_together(tmp_path):
    """The lines of the README, in the place of the template's."""
    rng, path = np.random.default_rng(0), tmp_path / "flats.csv"
    flats = pandas.DataFrame({"building": rng.integers(0, 50, 400), "district": rng.choice(["a", "b"], 400)})
    flats.assign(size=np.arange(400.0), price=rng.normal(size=400)).to_csv(path, index=False)
    (lines,) = re.findall(r"```python\n(.*?)```", (TEMPLATES / "README.md").read_text(), re.DOTALL)
    imports = (TEMPLATES / "table.py").read_text().partition("\nNAME = ")[0]
    space = {"given": SimpleNamespace(path=path)}
    exec(imports + "\n" + lines, space)
    parts = [
        space[part][:][0][:, space["data"].columns.index("size")].int() for part in ("train", "valid", "test")
    ]
    assert sorted(np.concatenate(parts)) == list(range(400)) and min(map(len, parts)) > 40
    inside = [set(flats["building"][part.numpy()]) for part in parts]
    assert sum(map(len, inside)) == len(set.union(*inside)) == flats["building"].nunique()


def test_a_text_in_a_notebook(here):
    Path("plays.txt").write_text("to be or not to be, that is the question\n" * 200)
    notebook = jupytext.read(copy("text.py", "([] if", '(["plays.txt"] if'))
    NotebookClient(notebook, timeout=800, kernel_name="python3").execute()
    printed = "".join(
        output.get("text", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert on_test_rows(printed, "perplexity") < 3  # 256 is a guess
    assert "the question\nto be" in printed  # what the model has written


def test_the_three_loops_differ_in_their_loss_only():
    texts = [path.read_text(encoding="utf-8") for path in sorted(TEMPLATES.glob("*.py"))]
    loops = {
        re.sub("loss = .*", "", text.partition("\ndef train_loop")[2].partition("\n# %%")[0])
        for text in texts
    }
    assert len(texts) == 3 and len(loops) == 1
