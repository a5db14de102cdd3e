"""The templates in notebooks/own_experiment, each copied to an empty folder and run as a reader runs it.

They share a cluster: a script uses that of its home, and at its end leaves it to those that still use it.
"""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from unittest.mock import MagicMock

import jupytext
import numpy as np
import pandas
import pytest
import torch
from nbclient import NotebookClient
from PIL import Image

from labkit import runs
from labs import until

pytestmark = [pytest.mark.slow, pytest.mark.covers("notebooks/own_experiment/")]


ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = ROOT / "notebooks" / "own_experiment"
LAB = {"cpus_per_node": 3}


# -- what each template reads, and what it refuses -----------------------------------------------------------


def reader(name: str) -> dict:
    """Return the names of a template's imports and of the functions of its reading cell."""
    imports, reading = cells_of(name)
    space: dict = {}
    exec(f"{imports}\n{reading}", space)
    return space


def cells_of(name: str) -> tuple[str, str]:
    """Return the imports of a template, and the cell that reads data."""
    text = (TEMPLATES / name).read_text(encoding="utf-8")
    (reading,) = re.findall(r"# %%\n(def read_.*?)\n\n\n# %%", text, re.DOTALL)
    return text.partition("\nNAME = ")[0], reading


def code_below(heading: str) -> list[str]:
    """Return the blocks of Python in a section of the README."""
    text = (TEMPLATES / "README.md").read_text()
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def test_lesson_10_reads_its_table_as_the_template_does():
    lesson = (ROOT / "lessons" / "10_own_experiment.py").read_text(encoding="utf-8")
    assert f"# %%\n{cells_of('table.py')[1]}\n" in lesson


@pytest.mark.parametrize("name", ["images.py", "table.py", "text.py"])
def test_what_reads_the_data_can_be_read_itself(name):
    assert len(cells_of(name)[1].splitlines()) <= 40


FLATS = """\
country,iso,region,roof,price
Österreich,AT,007,None,100.5
Namibia,NA,005,tile,101.5
Côte d'Ivoire,CI,006,,102.5
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_a_table_keeps_na_none_empty_cells_and_leading_zeros(tmp_path, capsys, encoding):
    path = tmp_path / "flats.csv"
    path.write_text(FLATS, encoding=encoding)
    options = {"encoding": encoding} if encoding == "latin-1" else {}
    names = ["country", "iso", "region", "roof"]
    table, x = reader("table.py")["read_table"](path, target="price", categories=names, **options)
    assert table.to_csv(index=False) == FLATS
    assert list(x.loc[1, ["iso_NA", "country_Namibia", "region_005", "roof_tile"]]) == [1, 1, 1, 1]
    assert x.shape == (3, 12) and set(x.dtypes) == {np.dtype("float32")}
    assert "region: 3 texts, such as ['005', '006', '007']" in capsys.readouterr().out


LOST = [
    (FLATS.replace("101.5", '"1.234,5"'), {}, r"'price' has '1\.234,5' in row 3"),
    (FLATS.replace("101.5", "NA"), {}, "'price' has 'NA' in row 3"),
    (FLATS.replace("101.5", ""), {}, "'price' has '' in row 3"),
    (FLATS.replace(",101.5", ""), {}, "'price' has '' in row 3"),
    (FLATS.replace("101.5", "nan"), {}, "'price' has 'nan' in row 3"),
    (FLATS.replace(".5\n", ".5,\n"), {}, "more cells than its header"),
    (FLATS.replace("101.5", "101.5,7"), {}, "Expected 5 fields in line 3, saw 6"),
    (FLATS, {"drop": ["country", "iso", "region"]}, "'roof' has 'None' in row 2"),
    (
        FLATS.replace("007", "16777217"),
        {"categories": ["country", "iso", "roof"]},
        "'region' has whole numbers above 16,777,216",
    ),
    (FLATS.replace("101.5", "inf"), {}, "'price' has"),
]


@pytest.mark.parametrize("text, options, refused", LOST)
def test_what_a_table_would_lose_in_silence_is_refused(tmp_path, text, options, refused):
    path = tmp_path / "flats.csv"
    path.write_text(text, encoding="utf-8")
    options = options or {"categories": ["country", "iso", "region", "roof"]}
    with pytest.raises(ValueError, match=refused):
        reader("table.py")["read_table"](path, target="price", **options)


def test_a_large_target_may_lose_its_last_digits(tmp_path):
    (tmp_path / "flats.csv").write_text("size,price\n70,16777217\n80,2\n")
    table, _ = reader("table.py")["read_table"](tmp_path / "flats.csv", target="price")
    assert table["price"].tolist() == [16777217, 2]


def test_gaps_are_filled_as_the_readme_shows(tmp_path):
    (tmp_path / "flats.csv").write_text("size,price\n70,1\n,2\nNA,3\n")
    imports, reading = cells_of("table.py")
    (lines,) = code_below("Fill gaps")
    read = "    table = pandas.read_csv(path, dtype=dict.fromkeys(texts, str), **options)\n"
    assert read in reading
    space: dict = {}
    exec(f"{imports}\n{reading.replace(read, read + textwrap.indent(lines, '    '))}", space)
    _, x = space["read_table"](tmp_path / "flats.csv", target="price")
    assert x.to_dict("list") == {"size": [70, 60, 60], "size_unknown": [0, 1, 1]}


def test_a_code_that_is_read_as_a_number_is_shown(tmp_path, capsys):
    (tmp_path / "flats.csv").write_text(FLATS, encoding="utf-8")
    read_table = reader("table.py")["read_table"]
    read_table(tmp_path / "flats.csv", target="price", categories=["country", "iso", "roof"])
    assert "region: numbers from 5 to 7" in capsys.readouterr().out


def photo(path: Path, image: Image.Image, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)


def test_images_show_their_colours_whatever_their_file(tmp_path):
    read_images, red = reader("images.py")["read_images"], Image.new("RGB", (8, 4), "red")
    photo(tmp_path / "a" / "plain.png", red)
    photo(tmp_path / "a" / "palette.gif", red.convert("P", palette=Image.Palette.ADAPTIVE))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    photo(tmp_path / "a" / "turned.png", Image.new("RGB", (4, 8), "red"), exif=exif)
    photo(tmp_path / "a" / "phone.jpg", red, format="MPO", save_all=True, append_images=[red], quality=100)
    photo(tmp_path / "b" / "transparent.png", Image.new("RGBA", (8, 4), (9, 9, 9, 0)))
    (tmp_path / "b" / "Thumbs.db").write_bytes(b"x")
    x, y, classes = read_images(tmp_path, size=(8, 4))
    assert (x.shape, x.dtype, y.tolist(), classes) == ((5, 4, 8, 3), np.uint8, [0, 0, 0, 0, 1], ["a", "b"])
    assert np.abs(x[:4] - [255.0, 0, 0]).max() <= 2  # a JPEG is nearly that
    assert x[4].min() == 255
    assert read_images(tmp_path, size=(8, 4), mode="L")[0].shape == (5, 4, 8)
    square = read_images(tmp_path, size=(8, 8))[0][0]  # keeps the proportions, on white
    assert square[0].min() == 255 and square[4].tolist() == [[255, 0, 0]] * 8


def test_images_with_pages_or_16_bits_and_other_files_are_refused(tmp_path):
    pages = [Image.new("L", (8, 8), level) for level in (0, 200)]
    photo(tmp_path / "stack" / "a" / "stack.tif", pages[0], save_all=True, append_images=pages[1:])
    photo(tmp_path / "deep" / "a" / "deep.png", Image.fromarray(np.full((8, 8), 40_000, np.uint16)))
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes" / "a").mkdir(parents=True)
    (tmp_path / "notes" / "a" / "notes.png").write_bytes(b"ask Kim")
    for folder, error, words in (
        ("stack", ValueError, r"stack\.tif has 2 pages"),
        ("deep", ValueError, r"deep\.png has more than 8 bits"),
        ("empty", ValueError, "empty has no images: it needs a folder for each class"),
        ("notes", OSError, r"notes\.png"),
    ):
        with pytest.raises(error, match=words):
            reader("images.py")["read_images"](tmp_path / folder, size=(8, 8))


def test_a_text_has_one_encoding(tmp_path):
    space, path = reader("text.py"), tmp_path / "plays.txt"
    read_text = space["read_text"]
    path.write_bytes("Perú\n".encode() + b"plain\n" + "Österreich\n".encode("latin-1"))
    with pytest.raises(ValueError, match="line 3 isn't UTF-8: b'.xd6sterreich"):
        read_text(path)
    with pytest.raises(ValueError, match="line 1 is UTF-8, and would become 'PerÃº"):
        read_text(path, encoding="latin-1")
    for encoding in ("utf-8", "latin-1"):
        path.write_text("Perú\nplain\n", encoding=encoding)
        assert read_text(path, encoding=encoding) == "Perú\nplain\n"
    path.write_text("Perú", encoding="utf-16")
    with pytest.raises(ValueError, match="is UTF-16: write it in UTF-8"):
        read_text(path)
    x, y = space["rows_of"]("abcdefgh", length=3)
    assert (bytes(x.flatten().tolist()), bytes(y.flatten().tolist())) == (b"abcdef", b"bcdefg")
    assert x.dtype == torch.int64


# -- each template as a whole --------------------------------------------------------------------------------


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
    result, value = re.search(rf"on \d+ test rows: ({metric} (\S+))", printed).groups()
    newest = runs.latest(state=None)
    assert (newest.note, newest.state, newest.workers) == (f"test: {result}", "finished", 2)
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
    assert runs.latest("images").dataset == "photos"


def test_a_table_and_a_run_of_it_that_was_killed_resumes(here, home):
    script, printed = copy("table.py", '"epochs": 10', '"epochs": 60'), here / "printed.txt"
    with printed.open("w") as output:
        killed = subprocess.Popen([sys.executable, "-u", script], stdout=output)
        until(lambda: "epoch 5/60" in printed.read_text())
        killed.kill()
        killed.wait()
    with pytest.raises(AssertionError, match="had the data 'made-up-flats.csv': give their path"):
        run(script, "other.csv", "--resume")
    assert 20 < on_test_rows(run(script, "--resume"), "rmse") < 40  # 25 of it is noise
    lost, resumed = runs.latest("table", state="lost"), runs.latest("table")
    assert resumed.storage_path == lost.storage_path
    epochs = [entry["epoch"] for entry in resumed.history]
    # A report is shown at once, and its checkpoint is committed when Ray's controller looks again.
    assert epochs == list(range(epochs[0], 60)) and epochs[0] >= 1
    # The test rows were measured with the best checkpoint, and only that and the latest are kept.
    assert resumed.metrics["rmse"] < 40


def test_classes_from_a_table_and_predictions_of_new_rows(here):
    """The README's lines, in the places that it names."""
    numbers, network = code_below("Classes instead of numbers")
    (predict,) = code_below("Predict new rows")
    predict = predict.replace('target="price"', 'target="label", drop=["label"]').replace("price", "label")
    text = (TEMPLATES / "table.py").read_text()
    (measure,) = re.findall(
        r"@torch.no_grad\(\)\ndef measure.*?\n\n\n", (TEMPLATES / "images.py").read_text(), re.DOTALL
    )
    changes = [
        (
            r'target="price", categories=\["district"\]',
            'target="label", categories=["district"], drop=["label"]',
        ),
        (r"y = table.*?\nrows = .*?\n", numbers),
        (r"class Network.*?\n\n\n(?=@torch)", f"{network}\n\n"),
        (r"@torch.no_grad\(\)\ndef measure.*?\n\n\n", measure),
        (r"loss = .*?\n", "loss = nn.functional.cross_entropy(model(x), y)\n"),
        (r"Network\(\*train\[:\], ", "Network(train[:][0], len(classes), "),
        (r"\n# %%\nstore.stop", f"\n{predict}\n# %%\nstore.stop"),
        ("rmse", "accuracy"),
        ('"min"', '"max"'),
    ]
    for pattern, replacement in changes:
        text, count = re.subn(pattern, lambda _, new=replacement: new, text, flags=re.DOTALL)
        assert count, pattern
    Path("kinds.py").write_text(text)
    rng = np.random.default_rng(0)
    size = rng.uniform(0, 100, 300)
    flats = pandas.DataFrame({"size": size, "district": rng.choice(["a", "b"], 300)})
    flats.assign(label=np.where(size > 50, "large", "small")).to_csv("flats.csv", index=False)
    pandas.DataFrame({"size": [1.0, 99.0], "district": ["a", "c"]}).to_csv("new.csv", index=False)
    printed = run("kinds.py", "flats.csv")
    assert on_test_rows(printed, "accuracy") > 0.9
    small, large = re.findall(r"\[+ ?(-?[\d.]+), +(-?[\d.]+)\]", printed)[-2:]
    assert float(small[0]) < float(small[1]) and float(large[0]) > float(large[1])


def test_new_rows_are_read_as_the_others_and_need_each_column(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space, model = reader("table.py"), MagicMock()
    Path("flats.csv").write_text("size,district,price\n50,007,1\n60,NA,2\n")
    Path("new.csv").write_text("size,district\n50,007\n")
    table, x = space["read_table"]("flats.csv", "price", ["district"])
    space |= {"table": table, "x": x, "model": model}
    (predict,) = code_below("Predict new rows")
    exec(predict, space)
    assert model.call_args.args[0].tolist() == [[50.0, 1.0, 0.0]]
    Path("new.csv").write_text("area,district\n50,007\n")
    with pytest.raises(ValueError, match="new.csv has no {'size'}"):
        exec(predict, space)


def test_rows_that_belong_together_stay_together(tmp_path):
    """The lines of the README, in the place of the template's."""
    rng, path = np.random.default_rng(0), tmp_path / "flats.csv"
    flats = pandas.DataFrame({"building": rng.integers(0, 50, 400), "district": rng.choice(["a", "b"], 400)})
    flats.assign(size=np.arange(400.0), price=rng.normal(size=400)).to_csv(path, index=False)
    space = reader("table.py") | {"path": path}
    exec(code_below("Rows that belong together")[0], space)
    column = list(space["x"]).index("size")  # the number of the row
    parts = [space[part][:][0][:, column].int().tolist() for part in ("train", "valid", "test")]
    assert sorted(sum(parts, [])) == list(range(400)) and min(map(len, parts)) > 40
    buildings = [set(flats["building"][part]) for part in parts]
    assert sum(map(len, buildings)) == flats["building"].nunique()


def test_a_text_in_a_notebook(here):
    Path("plays.txt").write_text("to be or not to be, that is the question\n" * 200)
    notebook = jupytext.read(copy("text.py", "([] if", '(["plays.txt"] if'))
    NotebookClient(notebook, timeout=800, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(output.get("text", "") for output in outputs)
    assert on_test_rows(printed, "perplexity") < 3  # 256 is a guess
    assert "the question\nto be" in printed  # what the model has written
