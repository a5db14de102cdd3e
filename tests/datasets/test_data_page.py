"""docs/data.md: each Python example on the page runs, on files like those that it talks about."""

import re
from pathlib import Path

import numpy as np
import pandas
import pytest
from PIL import Image

import datasets as hugging_face
from labkit import datasets
from labkit.errors import LabError

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
NAMES = hugging_face.ClassLabel(names=["cat", "dog"])


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the examples under a heading in a folder with files, and return their variables."""
    monkeypatch.chdir(tmp_path)

    def _run(heading: str) -> dict:
        names = {"pandas": pandas, "datasets": datasets, "Path": Path}
        names["hugging_face"] = hugging_face
        section = re.split(r"\n#+ ", PAGE.partition(f"# {heading}\n")[2])[0]
        for example in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
            exec(example, names)
            names.setdefault("owns", []).append(names["own"])
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
    now = 1630175280000 + 60_000 * np.arange(60)
    trades = pandas.DataFrame({"id": 10**17 + np.arange(60), "ms": now, "price": np.arange(60) + 0.5})
    trades.to_csv("trades.csv", index=False)
    with pytest.raises(LabError, match="7 columns are neither"):
        datasets.from_table("sales.csv", target="income", task="classification")
    sales, trades = run("Make numbers")["owns"]
    assert sales.columns == ("gain", "rent", "share", "sold", "seen", "size")
    np.testing.assert_allclose(
        sales.x[:2], [[-1234, 1234.5, 0.12, 359, 9, 40.5], [55, 950.25, 0.05, 3, 8, 0]]
    )
    assert sales.y[:2].tolist() == [11593.5, -7942]
    assert trades.x.ravel().tolist() == [60.0 * row for row in range(60)]


def test_texts(run):
    for name in ("pos", "neg"):
        Path("reviews", name).mkdir(parents=True)
        for number in range(10):
            Path("reviews", name, f"{number}.txt").write_text(f"{name} {number}")
    (own,) = run("Texts")["owns"]
    assert own.classes == ("neg", "pos") and len(own) == 20
    with pytest.raises(LabError, match="doesn't end with .csv"):
        datasets.from_text("reviews", length=8, target="label")


def test_hugging_face_and_lesson_03(run):
    kinds = {"label": [1, 0, 1] * 20}
    features = hugging_face.Features(sentence=hugging_face.Value("string"), label=NAMES)
    films = {"sentence": ["good", "bad", "so so"] * 20, **kinds}
    films = hugging_face.Dataset.from_dict(films, features=features)
    films.save_to_disk("films")
    pixels = [
        Image.fromarray(np.full((6, 5), 100 * label + row, np.uint8))
        for row, label in enumerate(kinds["label"])
    ]
    features = hugging_face.Features(image=hugging_face.Image(), label=NAMES)
    photos = {"image": pixels, "label": [-1, *kinds["label"][1:]]}
    hugging_face.Dataset.from_dict(photos, features=features).save_to_disk("photos")
    texts, images = run("From Hugging Face")["owns"]
    assert texts.classes == ("cat", "dog") and texts.y[:3].tolist() == [1, 0, 1]
    assert repr(images) == "<photos_by_class: 59 images of 32×32, classification, 2 classes>"
    np.testing.assert_array_equal(images.x.mean(axis=(1, 2)) > 99, images.y == 1)
    with pytest.raises(LabError, match=r"source.to_pandas\(\)"):
        datasets.from_table(films, target="label")
    names = run("Your images in lesson 03")
    assert names["train"].images.shape[1:] == (28, 28) and names["test"].classes == ("cat", "dog")


def test_the_error_on_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    days = pandas.date_range("2024-01-03", periods=60).strftime("%Y-%m-%d")
    flats = {
        "district": ["north", "port", "south"] * 20,
        "sold": days,
        "price": np.arange(60) + 0.5,
        "rooms": 3,
    }
    pandas.DataFrame(flats).to_csv("flats.csv")
    with pytest.raises(LabError) as caught:
        datasets.from_table("flats.csv", target="price")
    assert f"LabError: {caught.value}\n" in PAGE
