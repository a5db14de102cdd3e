"""Keys of a store: kept for their owner alone, shown nowhere, found by workers here and elsewhere."""

import os
import pickle

import pytest

from labkit.errors import StorageDenied, StorageError
from labkit.storage.keys import KeyRing, Keys

KEYS = Keys(access="AKIA-EXAMPLE", secret="very-secret")


@pytest.fixture
def ring(tmp_path):
    return KeyRing(str(tmp_path / "objects" / "keys.json"))


def test_made_once_and_read_again(ring):
    assert ring.make(KEYS) == KEYS == ring.read()
    assert ring.make(Keys.random()) == KEYS  # the first ones stay
    assert os.stat(ring.path).st_mode & 0o777 == 0o600
    assert os.listdir(os.path.dirname(ring.path)) == ["keys.json"]
    ring.forget()
    assert not os.path.exists(ring.path)


def test_random_keys_differ():
    assert len({Keys.random().secret for _ in range(50)}) == 50
    assert len(Keys.random().secret) >= 32


def test_no_repr_and_no_pickle_of_the_ring_has_a_secret(ring):
    ring.make(KEYS)
    for text in (repr(KEYS), repr(ring), pickle.dumps(ring).decode("latin1")):
        assert KEYS.secret not in text and KEYS.access not in text


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_file_that_others_can_read_is_refused(ring, mode):
    ring.make(KEYS)
    os.chmod(ring.path, mode)
    with pytest.raises(StorageDenied, match=f"mode {mode:04o}") as caught:
        ring.read()
    assert KEYS.secret not in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"access": "a"}', "null"])
def test_a_damaged_file(ring, content):
    ring.make(KEYS)
    with open(ring.path, "w") as file:
        file.write(content)
    with pytest.raises(StorageDenied, match="damaged"):
        ring.read()


def test_without_a_file_the_environment_has_them(ring):
    env = {"LABKIT_S3_ACCESS_KEY": "a", "LABKIT_S3_SECRET_KEY": "b"}
    assert ring.read(env) == Keys(access="a", secret="b")
    assert ring.read({"LABKIT_S3_ACCESS_KEY": "a"}) == Keys()  # botocore's own chain goes on from here


def test_the_file_comes_before_the_environment(ring):
    ring.make(KEYS)
    assert ring.read({"LABKIT_S3_ACCESS_KEY": "a", "LABKIT_S3_SECRET_KEY": "b"}) == KEYS


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="LABKIT_HOME"):
        KeyRing(str(tmp_path / "file" / "keys.json")).make(KEYS)
