"""A class in a bucket of the lab's own object store."""

import json
import threading

import pytest

import object_servers
from labkit import classroom
from labkit.errors import LabError
from labkit.exercises import predict
from labkit.storage.client import read_keys


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with object_servers.embedded(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture
def place(store, tmp_path, monkeypatch):
    """A new bucket, a home of a learner, and the keys in the environment."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    for name, key in zip(("ACCESS", "SECRET"), read_keys(store.keys), strict=True):
        monkeypatch.setenv(f"LABKIT_S3_{name}_KEY", key)
    return (
        f"{store.endpoint}/{store.bucket(f'class-{tmp_path.name[-8:]}'.strip('-_').replace('_', '-'))}/today"
    )


def page(place, tmp_path):
    return classroom.board(place, tmp_path / "board.html", once=True).read_text()


def test_a_class_in_a_bucket(store, place, tmp_path, monkeypatch):
    assert "0 learners" in page(place, tmp_path)
    shown = classroom.join(f"{place}/", "ann")
    access, secret = read_keys(store.keys)
    assert secret not in repr(shown) and access not in repr(shown)
    keys = tmp_path / "home" / "class-keys"
    assert keys.stat().st_mode & 0o777 == 0o600
    folder = place.removeprefix(f"{store.endpoint}/")
    honest = json.loads(store.files.cat_file(f"{folder}/{shown.file}"))
    store.files.pipe_file(f"{folder}/b.json", json.dumps(honest | {"nickname": "<b>bob</b>"}).encode())
    store.files.pipe_file(f"{folder}/large.json", b"x" * 300_000)
    store.files.pipe_file(f"{folder}/empty.json", b"")
    text = page(place, tmp_path)
    assert "2 learners" in text and "<td>ann</td>" in text and "<td>&lt;b&gt;bob&lt;/b&gt;</td>" in text
    assert "<td>large.json</td><td>it has more than 66 kB" in text and "<td>empty.json</td>" in text
    # A kernel that is started later has no keys in its environment.
    monkeypatch.delenv("LABKIT_S3_ACCESS_KEY")
    monkeypatch.delenv("LABKIT_S3_SECRET_KEY")
    assert classroom.leave() and not keys.exists()
    assert f"{folder}/{shown.file}" not in store.files.find(folder)


def test_a_store_that_no_longer_answers_holds_up_no_cell(store, place, tmp_path):
    classroom.join(place, "ann")
    server = object_servers.process(store)
    server.suspend()
    try:
        predict("03-a", 2)
        predict("03-b", 2)
        assert sum(one.name == "labkit-class" for one in threading.enumerate()) == 1
        with pytest.raises(LabError, match="does not answer"):
            page(place, tmp_path)
    finally:
        server.resume()
    assert classroom.leave()


def test_keys_of_somebody_else(place, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_S3_SECRET_KEY", "wrong-secret")
    with pytest.raises(LabError, match="join the class") as error:
        classroom.join(place, "ann")
    assert "wrong-secret" not in str(error.value)
    assert not list((tmp_path / "home").glob("class*"))
