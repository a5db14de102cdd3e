"""Labelled images: rows, to Parquet and back, and files that are refused."""

import pickle

import numpy as np
import pytest

from course.datasets import Dataset, read_rows
from labkit.errors import BadInput, Damaged

TEN = tuple("0123456789")
IMAGES = np.random.default_rng(0).integers(0, 256, (40, 28, 28), dtype=np.uint8)
LABELS = np.arange(40) % 10
DATA = Dataset(IMAGES, LABELS, "tiny", "train", TEN)


def test_its_rows():
    assert repr(DATA[:1]) == "<Dataset tiny, train: 1 image of 28×28, 10 classes>"
    image, label = DATA[13]
    assert np.array_equal(image, IMAGES[13]) and label == 3
    assert DATA[DATA.labels == 3].labels.tolist() == [3, 3, 3, 3]
    assert np.array_equal(DATA[[5, 1]].images, IMAGES[[5, 1]])
    assert np.array_equal(pickle.loads(pickle.dumps(DATA)).images, IMAGES)


OTHERS = [
    (IMAGES.reshape(40, 784), LABELS, "the images are uint8 [40, 784]"),
    (IMAGES.astype(np.float32), LABELS, "the images are float32 [40, 28, 28]"),
    (IMAGES, LABELS.tolist(), "the labels are int64 [40]"),
    (IMAGES, LABELS + 1, "labels go from 1 to 10, with 10 classes"),
]


@pytest.mark.parametrize("images, labels, fact", OTHERS)
def test_other_arrays_are_refused(images, labels, fact):
    with pytest.raises(BadInput) as caught:
        Dataset(images, labels, "tiny", "train", TEN)
    assert fact in caught.value.fact


def test_parquet_and_back(tmp_path):
    paths = [DATA[:25].to_parquet(tmp_path / "new" / "a.parquet")]
    paths += [DATA[25:].to_parquet(tmp_path / "new" / "b.parquet")]
    images, labels = read_rows(str(tmp_path / "new"))
    assert np.array_equal(images, IMAGES) and np.array_equal(labels, LABELS)
    images[0] = labels[0] = 0  # torch wants arrays that can be written
    assert sorted((tmp_path / "new").iterdir()) == paths


def test_damaged_files_are_refused(tmp_path):
    path = DATA.to_parquet(tmp_path / "x.parquet")
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for content in (b"", b"<html>please log in</html>" * 10, whole[: len(whole) // 2], bytes(flipped)):
        path.write_bytes(content)
        with pytest.raises(Damaged, match=r"x\.parquet"):
            read_rows(str(path))
