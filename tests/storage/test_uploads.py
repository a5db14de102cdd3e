"""Uploads: every object once, with the right content. test_store_faults.py kills the server."""

import dataclasses
import hashlib
import io

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

import object_servers
from labkit import datasets
from labkit.errors import LabError
from labkit.storage import upload, upload_shards


@pytest.fixture(scope="module", params=object_servers.KINDS)
def store(request, tmp_path_factory):
    with object_servers.start(request.param, tmp_path_factory.mktemp("home")) as store:
        yield store


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits", n=60)


@pytest.fixture
def bucket(store, request):
    name = "t-" + hashlib.sha256(request.node.name.encode()).hexdigest()[:12]
    yield name
    if store.files.exists(name):
        store.files.rm(name, recursive=True)


def test_each_image_is_a_png_with_its_label_in_the_key(store, bucket, digits):
    path = upload(digits, store, bucket)
    keys = sorted(store.files.find(path))
    assert keys == sorted(
        f"{bucket}/digits/train/{label}/{row:05}.png" for row, label in enumerate(digits.labels)
    )
    for key in keys[::13]:
        image = np.array(Image.open(io.BytesIO(store.files.cat_file(key))))
        assert np.array_equal(image, digits.images[int(key[-9:-4])])
    body = store.files.cat_file(keys[0])
    store.files.pipe_file(keys[0], body[:20])  # as after an upload that broke off
    store.files.rm(keys[1])
    assert upload(digits, store, bucket) == path and len(store.files.find(path)) == 60
    assert store.files.cat_file(keys[0]) == body
    store.files.pipe_file(f"{path}/stranger.txt", b"1")
    with pytest.raises(LabError, match=r"1 other objects.*stranger\.txt") as caught:
        upload(digits, store, bucket)
    assert f'store.files.rm("{path}", recursive=True)' in caught.value.fix


def test_shards_hold_the_same_rows(store, bucket, digits):
    path = upload_shards(digits, store, bucket, rows_per_shard=25)
    names = sorted(store.files.find(f"{bucket}/digits/train-shards"))
    assert names == [f"{path}/part-{k:05}.parquet" for k in range(3)]
    tables = [pyarrow.parquet.read_table(name, filesystem=store.filesystem) for name in names]
    assert [table.num_rows for table in tables] == [25, 25, 10]
    assert pyarrow.concat_tables(tables).equals(digits.to_arrow())


def test_a_full_disk(tmp_path, digits):
    """No file of the server's may grow larger than this, as under a quota."""
    import resource

    with object_servers.embedded(tmp_path / "home") as store:
        resource.prlimit(object_servers.process(store).pid, resource.RLIMIT_FSIZE, (1 << 14, 1 << 14))
        noise = np.random.default_rng(0).integers(0, 256, (60, 28, 28), dtype=np.uint8)
        with pytest.raises(LabError, match="is its disk full") as caught:
            upload_shards(dataclasses.replace(digits, images=noise), store, "lab")
    assert str(tmp_path) in caught.value.fix


def test_what_cannot_be_uploaded(store, digits):
    for given in ((digits.images, store), (digits[:0], store), (digits, "digits")):
        with pytest.raises(LabError, match="Dataset of images with rows and a Store"):
            upload(*given, "lab")
    with pytest.raises(LabError, match="rows_per_shard=.* is not a whole number"):
        upload_shards(digits, store, "lab", rows_per_shard=0)
