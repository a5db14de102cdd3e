"""Data sets that Hugging Face's own library saved: what they become, and what is said about damage."""

import io
import sys

import datasets as hf
import numpy as np
import pytest
from PIL import Image

from labkit import datasets
from labkit.errors import DatasetError

NUMBERS = np.random.default_rng(0)
KINDS = hf.ClassLabel(names=["cat", "dog"])


def photos(n=100, labels=None):
    labels = [row % 2 for row in range(n)] if labels is None else labels
    pixels = [Image.fromarray(np.full((6, 5, 3), 40 + 160 * (row % 2), np.uint8)) for row in range(n)]
    features = hf.Features({"image": hf.Image(), "label": KINDS})
    return hf.Dataset.from_dict({"image": pixels, "label": labels}, features=features)


def table(n=9000):
    kinds = NUMBERS.integers(0, 2, n)
    columns = {"size": NUMBERS.normal(size=n), "colour": NUMBERS.choice(["red", "blue"], n), "kind": kinds}
    columns["text"] = [f"a {'dog' if kind else 'cat'} {row}" for row, kind in enumerate(kinds)]
    return hf.Dataset.from_dict(columns).cast_column("kind", KINDS)


def test_images_saved_on_disk(tmp_path):
    photos().save_to_disk(tmp_path / "saved")
    own = datasets.from_huggingface(tmp_path / "saved", target="label")
    assert repr(own) == "<dataset: images of 6×5×3, classification, 2 classes>"
    assert own.classes == ("cat", "dog")
    x, y = own.load("train")
    assert x.dtype == np.uint8 and len(x) + len(own.load("test")[0]) == 100
    np.testing.assert_array_equal(x.mean(axis=(1, 2, 3)) > 100, y == 1)
    assert np.flatnonzero(np.diff(y) == 0).size > 5  # they are not in the order of the rows
    assert datasets.from_huggingface(photos(), target="label", size=(4, 3)).load("test")[0].shape[1:] == (
        4,
        3,
        3,
    )


def test_a_table_is_read_in_batches(tmp_path):
    source = table()
    source.save_to_disk(tmp_path / "saved")
    own = datasets.from_huggingface(str(tmp_path / "saved"), target="kind", drop=["text"], test=0)
    assert own.columns == ("size", "colour=blue", "colour=red") and own.classes == ("cat", "dog")
    assert [len(y) for y in (batch[1] for batch in own.batches("train"))] == [4096, 4096, 808]
    x, y = own.load("train")
    np.testing.assert_array_equal(x[:, 0], np.array(source["size"], np.float32))
    np.testing.assert_array_equal(y, source["kind"])
    price = datasets.from_huggingface(source, target="size", drop=["text"])
    assert price.task == "regression" and price.columns[:2] == ("colour=blue", "colour=red")


def test_texts_with_classes_and_without(tmp_path):
    hf.DatasetDict({"train": table(50), "test": table(20)}).save_to_disk(tmp_path / "saved")
    own = datasets.from_huggingface(
        tmp_path / "saved", target="kind", split="train", column="text", length=5, test=0
    )
    x, y = own.load("train")
    assert own.name == "train" and [bytes(row.astype(np.uint8)) for row in x] == [
        b"a dog" if one else b"a cat" for one in y
    ]
    language = datasets.from_huggingface(tmp_path / "saved", split="test", length=8, test=0)
    assert language.task == "language"
    x, y = language.load("train")
    np.testing.assert_array_equal(x[0, 1:], y[0, :-1])
    assert bytes(x[0].astype(np.uint8)) in (b"a dog 0\n", b"a cat 0\n")


def test_a_damaged_file_does_not_end_the_process(tmp_path):
    hf.Dataset.from_dict({"text": ["a", "bc", "def"], "kind": [1, 0, 1]}).save_to_disk(tmp_path / "saved")
    (file,) = (tmp_path / "saved").glob("*.arrow")
    ends = np.array([0, 1, 3, 6], np.int32)  # where each text ends
    wild = np.array([0, 1, 2**30, 6], np.int32)
    assert ends.tobytes() in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(ends.tobytes(), wild.tobytes()))
    with pytest.raises(DatasetError, match="its files are damaged: .*offset"):
        datasets.from_huggingface(tmp_path / "saved", target="kind", length=8)


def test_what_cannot_be_used_is_named(tmp_path, monkeypatch):
    def failure(source, **named):
        with pytest.raises(DatasetError) as caught:
            own = datasets.from_huggingface(source, **named)
            own.load("train"), own.load("test")
        return str(caught.value)

    both = hf.DatasetDict({"train": table(20), "test": table(20)})
    assert "has the splits train, test" in failure(both, target="kind")
    assert "no column 'price', only size, colour" in failure(table(20), target="price")
    assert "save_to_disk" in failure(tmp_path / "nothing", target="kind")
    assert "is DataFrame" in failure(table(20).to_pandas(), target="kind")
    assert "has no rows" in failure(table(20).select([]), target="kind")
    assert "row 1 has no class" in failure(photos(3, [0, -1, 1]), target="label")
    assert "is no ClassLabel" in failure(photos(3))
    missing = table(20).to_pandas()
    missing.loc[7, "size"] = np.nan
    assert "row 7" in failure(hf.Dataset.from_pandas(missing), target="kind", task="classification")
    broken = io.BytesIO()
    photos(1)[0]["image"].save(broken, "png")
    rows = [{"bytes": broken.getvalue()}, {"bytes": broken.getvalue()[:40]}, None]
    features = hf.Features({"image": hf.Image(), "label": KINDS})
    for bad in (1, 2):
        damaged = hf.Dataset.from_dict({"image": [rows[0], rows[bad]], "label": [0, 1]}, features=features)
        assert "row 1 is no image" in failure(damaged, target="label")
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install datasets" in failure(tmp_path)
