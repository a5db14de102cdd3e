"""docs/data.md: each Python example on the page runs, on files like those that it talks about."""

import re
from pathlib import Path

import numpy as np
import pandas
import pytest
from PIL import Image, ImageOps

import datasets as hugging_face
from course import datasets

pytestmark = pytest.mark.slow


ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
NAMES = hugging_face.ClassLabel(names=["cat", "dog"])


def reader(name: str) -> str:
    """Return the cell of a template that reads data."""
    text = (ROOT / "notebooks" / "own_experiment" / f"{name}.py").read_text(encoding="utf-8")
    return re.findall(r"# %%\n(def read_.*?)\n\n\n# %%", text, re.DOTALL)[0]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the examples under a heading in a folder with files, and return their variables."""
    monkeypatch.chdir(tmp_path)
    names = {"pandas": pandas, "np": np, "numpy": np, "Path": Path, "Image": Image, "ImageOps": ImageOps}
    names |= {"datasets": hugging_face, "lab_datasets": datasets}
    exec(f"{reader('table')}\n{reader('images')}", names)

    def _run(heading: str) -> dict:
        section = re.split(r"\n#+ ", PAGE.partition(f"# {heading}\n")[2])[0]
        for example in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
            exec(example, names)
        return names

    return _run


def test_make_numbers(run):
    rows = {
        "id": ["a", "b"] * 30,
        "income": ["$11,593.50", "-$7,942.00"] * 30,
        "gain": ["(1,234)", "55"] * 30,
        "rent": ["1.234,5", "950,25"] * 30,
        "share": ["12%", "5%"] * 30,
        "sold": ["24.12.2024", "3.1.2024"] * 30,
        "seen": ["2024-03-30T10:00:00+01:00", "2024-03-31T10:00:00+02:00"] * 30,
        "size": ["40.5", "NA"] * 30,
    }
    pandas.DataFrame(rows).to_csv("sales.csv", index=False)
    sales = run("Make numbers")
    assert list(sales["x"]) == ["gain", "rent", "share", "sold", "seen", "size"]
    expected = [[-1234, 1234.5, 0.12, 359, 9, 40.5], [55, 950.25, 0.05, 3, 8, 0]]
    np.testing.assert_allclose(sales["x"][:2], expected, rtol=1e-6)
    assert sales["y"][:2].tolist() == [11593.5, -7942]


def test_hugging_face_and_lesson_03(run):
    labels = [1, 0, 1] * 20
    features = hugging_face.Features(sentence=hugging_face.Value("string"), label=NAMES)
    films = {"sentence": ["good", "bad", "so so"] * 20, "label": labels}
    hugging_face.Dataset.from_dict(films, features=features).save_to_disk("films")
    pixels = [
        Image.fromarray(np.full((6, 5), 100 * label + row, np.uint8)) for row, label in enumerate(labels)
    ]
    features = hugging_face.Features(image=hugging_face.Image(), label=NAMES)
    photos = {"image": pixels, "label": [-1, *labels[1:]]}
    hugging_face.Dataset.from_dict(photos, features=features).save_to_disk("photos")
    run("From Hugging Face")
    assert list(pandas.read_csv("films.csv")["label"][:3]) == ["dog", "cat", "dog"]
    assert len([*Path("photos_by_class").glob("*/*.png")]) == 59
    names = run("Your images in lesson 03")
    assert (len(names["train"]), len(names["test"]), names["test"].classes) == (48, 11, ("cat", "dog"))
    for part in (names["train"], names["test"]):
        assert part.images.shape[1:] == (28, 28)
        np.testing.assert_array_equal(part.images.mean(axis=(1, 2)) > 99, part.labels == 1)
