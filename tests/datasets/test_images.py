"""Labelled images: one schema, to Arrow and Parquet and back; a file that is wrong is refused."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labkit.datasets import images as module
from labkit.datasets.images import Dataset, read_parquet, schema, to_arrow
from labkit.errors import DatasetError

TEN = tuple("0123456789")
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (40, 28, 28), dtype=np.uint8)
LABELS = np.arange(40) % 10


@pytest.fixture
def data():
    return Dataset(IMAGES, LABELS, "tiny", "train", TEN)


def read(path):
    return read_parquet(path, name="tiny", split="train", classes=TEN)


def refused(path):
    with pytest.raises(DatasetError) as caught:
        read(path)
    assert caught.value.attempt == f"read {path.name}"
    assert str(path) in caught.value.fix
    return caught.value.fact


def test_it_says_what_it_is(data):
    assert repr(data) == "<Dataset tiny, train: 40 images of 28×28, 10 classes>"
    assert repr(data[:1]) == "<Dataset tiny, train: 1 image of 28×28, 10 classes>"
    assert len(data) == 40


def test_it_shows_ten_images(data):
    page = data._repr_html_()
    assert page.count("<img") == 10
    assert "40 images" in page
    odd = Dataset(IMAGES, LABELS, "<b>", "train", TEN)._repr_html_()
    assert "<b>" not in odd


def test_some_images_can_be_shown_with_captions(data):
    shown = data.show([3, 17])
    assert repr(shown) == "<Gallery of 2 images: 3, 7>"
    assert "is 3, said 8" in data.show([3], ["is 3, said 8"])._repr_html_()


def test_rows_and_parts(data):
    image, label = data[13]
    assert np.array_equal(image, IMAGES[13])
    assert label == 3
    part = data[data.labels == 3]
    assert part.labels.tolist() == [3, 3, 3, 3]
    assert part.name == "tiny"
    assert np.array_equal(data[[5, 1]].images, IMAGES[[5, 1]])


def test_it_travels_between_processes(data):
    assert np.array_equal(pickle.loads(pickle.dumps(data)).images, IMAGES)


@pytest.mark.parametrize(
    ("images", "labels", "fact"),
    [
        (IMAGES.reshape(40, 784), LABELS, "the images are uint8 [40, 784]"),
        (IMAGES.astype(np.float32), LABELS, "the images are float32 [40, 28, 28]"),
        (IMAGES, LABELS[:39], "the labels are int64 [39] for 40 images"),
        (IMAGES, LABELS.astype(np.uint8), "the labels are uint8 [40] for 40 images"),
        (IMAGES, LABELS + 1, "the labels go from 1 to 10, and there are 10 classes"),
        (IMAGES, LABELS - 1, "the labels go from -1 to 8, and there are 10 classes"),
    ],
)
def test_other_arrays_are_refused(images, labels, fact):
    with pytest.raises(DatasetError) as caught:
        Dataset(images, labels, "tiny", "train", TEN)
    assert caught.value.fact == fact


def test_the_table_has_the_schema_and_shares_the_memory(data):
    table = data.to_arrow()
    assert table.schema == schema()
    image = table.schema.field("image").type
    assert (image.value_type, image.shape) == (pa.uint8(), [28, 28])
    assert table.schema.field("label").type == pa.int64()
    column = table["image"].chunk(0)
    assert np.array_equal(column.to_numpy_ndarray(), IMAGES)
    assert np.shares_memory(column.to_numpy_ndarray(), IMAGES)


def test_a_part_that_is_no_whole_memory_makes_a_right_table(data):
    part = data[1::3]
    assert np.array_equal(part.to_arrow()["image"].chunk(0).to_numpy_ndarray(), IMAGES[1::3])
    assert part.to_arrow()["label"].to_pylist() == LABELS[1::3].tolist()


def test_parquet_and_back(data, tmp_path):
    path = data.to_parquet(tmp_path / "tiny.parquet")
    again = read(path)
    assert np.array_equal(again.images, IMAGES)
    assert np.array_equal(again.labels, LABELS)
    assert pq.read_schema(path) == schema()
    again.images[0] = again.labels[0] = 0  # torch wants arrays that can be written
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.parquet"]


def test_row_groups_are_joined(tmp_path):
    with pq.ParquetWriter(tmp_path / "x.parquet", schema(), **module.PARQUET_OPTIONS) as writer:
        for some in (slice(0, 7), slice(7, 40)):
            writer.write_table(to_arrow(IMAGES[some], LABELS[some]))
    assert np.array_equal(read(tmp_path / "x.parquet").images, IMAGES)


def test_a_failed_write_keeps_the_old_file(data, tmp_path, monkeypatch):
    path = data.to_parquet(tmp_path / "tiny.parquet")
    before = path.read_bytes()

    def fail(table, where, **options):
        where.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", fail)
    with pytest.raises(DatasetError, match="No space left"):
        data.to_parquet(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.parquet"]


def test_a_folder_that_is_not_there(data, tmp_path):
    with pytest.raises(DatasetError, match="No such file"):
        data.to_parquet(tmp_path / "nothing" / "tiny.parquet")


def test_several_writers_of_one_file_leave_one_good_file(data, tmp_path):
    path = tmp_path / "tiny.parquet"
    with ThreadPoolExecutor(8) as writers:
        assert list(writers.map(data.to_parquet, [path] * 32)) == [path] * 32
    assert np.array_equal(read(path).images, IMAGES)
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.parquet"]


def test_a_file_that_is_no_parquet(tmp_path):
    path = tmp_path / "x.parquet"
    for content in (b"", b"PAR1", b"<html>please log in</html>" * 10):
        path.write_bytes(content)
        assert refused(path)
    path.unlink()
    assert "No such file" in refused(path) or "does not exist" in refused(path)


def test_a_truncated_file(data, tmp_path):
    whole = data.to_parquet(tmp_path / "x.parquet").read_bytes()
    for size in range(0, len(whole), len(whole) // 50):
        (tmp_path / "x.parquet").write_bytes(whole[:size])
        assert refused(tmp_path / "x.parquet")


def test_a_flipped_bit_is_found_or_does_no_harm(data, tmp_path):
    path = data.to_parquet(tmp_path / "x.parquet")
    whole = path.read_bytes()
    found = 0
    for place in np.random.default_rng(1).integers(0, len(whole), 300):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        try:
            again = read(path)
        except DatasetError:
            found += 1
        else:  # a byte that carries no data
            assert np.array_equal(again.images, IMAGES)
            assert np.array_equal(again.labels, LABELS)
    assert found > 250


def lists(values, *sizes):
    array = pa.array(values.ravel())
    for size in sizes:
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


@pytest.mark.parametrize(
    ("columns", "fact"),
    [
        ({"image": lists(IMAGES, 784), "label": LABELS}, "its columns are (image: fixed_size_list"),
        ({"image": lists(IMAGES, 28, 28), "label": LABELS}, "its columns are (image: fixed_size_list"),
        ({"image": ["x"] * 40, "label": LABELS}, "its columns are (image: string, label: int64)"),
        ({"label": LABELS}, "its columns are (label: int64)"),
        (
            {"image": pa.FixedShapeTensorArray.from_numpy_ndarray(IMAGES), "label": LABELS.astype(np.int32)},
            "label: int32)",
        ),
        (
            {"image": pa.FixedShapeTensorArray.from_numpy_ndarray(IMAGES[:, :27]), "label": LABELS},
            "shape=[27,28]",
        ),
        (
            {"image": pa.FixedShapeTensorArray.from_numpy_ndarray(IMAGES), "label": LABELS + 5},
            "the labels go from 5 to 14",
        ),
        (
            {"image": pa.FixedShapeTensorArray.from_numpy_ndarray(IMAGES), "label": [None, *LABELS[1:]]},
            "some pixels or labels are missing",
        ),
        (
            {"image": pa.nulls(40, schema().field("image").type), "label": LABELS},
            "some pixels or labels are missing",
        ),
    ],
)
def test_other_columns_are_refused(tmp_path, columns, fact):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table(columns), path)
    assert fact in refused(path)


def test_no_rows_and_too_many_rows_are_refused_before_they_are_read(data, tmp_path, monkeypatch):
    path = data.to_parquet(tmp_path / "x.parquet")
    monkeypatch.setattr(module, "MOST_ROWS", 39)
    assert refused(path) == "it has 40 rows, and from 1 to 39 can be read at once"
    pq.write_table(schema().empty_table(), path)
    assert "it has 0 rows" in refused(path)
