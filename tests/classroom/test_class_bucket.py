"""A class in a bucket of the lab's own object store."""

import json
import secrets

import pytest

import object_servers
from course import classroom
from labkit.errors import NotReachable

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/storage/", "course/classroom/")]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with object_servers.embedded(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture
def place(store, tmp_path, monkeypatch):
    """A new bucket, a home of a learner, and the keys in the environment."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    for name, key in zip(("ACCESS", "SECRET"), store.read_keys(), strict=True):
        monkeypatch.setenv(f"LABKIT_S3_{name}_KEY", key)
    return f"{store.endpoint}/{store.bucket(f'class-{secrets.token_hex(4)}')}/today"


def page(place, tmp_path):
    return classroom.board(place, tmp_path / "board.html", once=True).read_text()


def test_a_class_in_a_bucket(store, place, tmp_path, monkeypatch):
    assert "0 learners" in page(place, tmp_path)
    shown = classroom.join(f"{place}/", "ann")
    access, secret = store.read_keys()
    assert secret not in repr(shown) and access not in repr(shown)
    keys = tmp_path / "home" / "class-keys"
    assert keys.stat().st_mode & 0o777 == 0o600
    folder = place.removeprefix(f"{store.endpoint}/")
    honest = json.loads(store.files.cat_file(f"{folder}/{shown.file}"))
    for number, content in enumerate(
        [json.dumps(honest | {"nickname": "<b>bob</b>"}).encode(), b"x" * 300_000, b""]
    ):
        store.files.pipe_file(f"{folder}/{number:016x}.json", content)
    text = page(place, tmp_path)
    assert "2 learners" in text and "<td>ann</td>" in text and "<td>&lt;b&gt;bob&lt;/b&gt;</td>" in text
    assert f"<td>{1:016x}.json</td><td>it has more than 64 KiB" in text and f"<td>{2:016x}.json</td>" in text
    # A kernel that is started later has no keys in its environment.
    monkeypatch.delenv("LABKIT_S3_ACCESS_KEY")
    monkeypatch.delenv("LABKIT_S3_SECRET_KEY")
    assert classroom.leave() and not keys.exists()
    assert f"{folder}/{shown.file}" not in store.files.find(folder)


def test_keys_of_an_earlier_class_are_not_used_again(place, tmp_path):
    keys = tmp_path / "home" / "class-keys"
    keys.parent.mkdir()
    keys.write_text("[labkit]\naws_access_key_id = old\naws_secret_access_key = old\n")  # class.json was lost
    assert classroom.join(place, "ann").place == place
    assert "old" not in keys.read_text()
    assert classroom.leave()


def test_keys_of_somebody_else(place, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_S3_SECRET_KEY", "wrong-secret")
    with pytest.raises(NotReachable, match="join the class") as error:
        classroom.join(place, "ann")
    assert "wrong-secret" not in str(error.value) and "LABKIT_S3_SECRET_KEY" in str(error.value)
    assert not list((tmp_path / "home").glob("class*"))
