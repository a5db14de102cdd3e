"""IDX files: good ones are read, and no other one costs more than an error."""

import gzip
import struct
import tracemalloc

import numpy as np
import pytest

from labkit.datasets.idx import MOST_BYTES, read_idx
from labkit.errors import DatasetError

IMAGES = np.arange(5 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(5, 28, 28)
SHAPE = (None, 28, 28)


def header(*shape, kind=0x08, zero=0, dimensions=None):
    return struct.pack(f">HBB{len(shape)}I", zero, kind, dimensions or len(shape), *shape)


GOOD = header(5, 28, 28) + IMAGES.tobytes()


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_good_file_is_read(tmp_path, pack):
    path = tmp_path / "images"
    path.write_bytes(pack(GOOD))
    images = read_idx(path, shape=SHAPE)
    assert images.dtype == np.uint8
    assert np.array_equal(images, IMAGES)
    images[0] = 0  # torch wants arrays that can be written


def test_labels_have_one_dimension(tmp_path):
    path = tmp_path / "labels"
    path.write_bytes(header(3) + bytes([7, 0, 9]))
    assert read_idx(path, shape=(3,)).tolist() == [7, 0, 9]


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (b"", "0 bytes"),
        (GOOD[:3], "3 bytes"),
        (GOOD[:9], "within its header"),
        (GOOD[:-1], "ends after 3,919 of the 3,920 bytes"),
        (GOOD[:16], "promises 3,920 bytes, more than a file of this size can hold"),
        (GOOD + b"x", "goes on after the 3,920 bytes"),
        (b"<!DOCTYPE html>" + bytes(5000), "no IDX file"),
        (header(5, 28, 28, zero=1) + IMAGES.tobytes(), "no IDX file"),
        (header(5, 28, 28, kind=0x0D) + bytes(4 * 3920), "float32 values"),
        (header(5, 28, 28, kind=0x42) + IMAGES.tobytes(), "no IDX file"),
        (header(kind=0x08, dimensions=0), "no IDX file"),
        (header(5, 28, 28, dimensions=200), "within its header"),
        (header(3920) + IMAGES.tobytes(), "[3920], and [n, 28, 28] was expected"),
        (header(4, 28, 35) + IMAGES.tobytes(), "[4, 28, 35], and [n, 28, 28] was expected"),
        (header(2**32 - 1, 28, 28), "are never read"),
        (header(MOST_BYTES // 784, 28, 28), "more than a file of this size can hold"),
        (gzip.compress(header(MOST_BYTES // 784, 28, 28)), "more than a file of this size can hold"),
        (gzip.compress(GOOD)[:-200], "end too early"),
        (gzip.compress(GOOD)[:2], "end too early"),
        (gzip.compress(GOOD)[:20] + bytes(200), "compressed data"),
        (gzip.compress(GOOD[:-1]), "ends after 3,919"),
        (gzip.compress(GOOD + bytes(1)), "goes on after"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_reason(tmp_path, content, fact):
    path = tmp_path / "images.gz"
    path.write_bytes(content)
    with pytest.raises(DatasetError) as caught:
        read_idx(path, shape=SHAPE)
    assert fact in caught.value.fact
    assert caught.value.attempt == "read images.gz"
    assert str(path) in caught.value.fix


def test_a_damaged_checksum_of_gzip_is_found(tmp_path):
    packed = bytearray(gzip.compress(GOOD))
    packed[-8] ^= 1  # the CRC of the contents
    (tmp_path / "x").write_bytes(packed)
    with pytest.raises(DatasetError, match="damaged"):
        read_idx(tmp_path / "x", shape=SHAPE)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DatasetError, match="No such file"):
        read_idx(tmp_path / "nothing", shape=SHAPE)
    with pytest.raises(DatasetError, match="directory"):
        read_idx(tmp_path, shape=SHAPE)


def test_a_gzip_bomb_takes_no_memory(tmp_path):
    path = tmp_path / "bomb"
    with gzip.open(path, "wb", compresslevel=9) as stream:
        stream.write(header(10, 28, 28))
        for _ in range(100):
            stream.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(DatasetError, match="goes on after"):
            read_idx(path, shape=SHAPE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
