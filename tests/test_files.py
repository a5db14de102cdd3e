"""Files that are written: complete or absent, and private where they have to be."""

import errno
import os
import stat

import pytest

from labkit.files import atomic_path, atomic_write, json_object, private_file


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "new" / "record.json"
    assert atomic_write(path, "ü") == path
    assert path.read_bytes() == "ü".encode()
    atomic_write(str(path), b"\0")
    assert path.read_bytes() == b"\0" and list(path.parent.iterdir()) == [path]


def test_what_fails_on_the_way_changes_nothing_and_its_name_cannot_be_foreseen(tmp_path):
    path, names = tmp_path / "model.keras", set()
    path.write_text("before")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), atomic_path(path, mode=0o600) as partial:
            assert stat.S_IMODE(partial.stat().st_mode) == 0o600  # before anything is written
            partial.write_text("half")
            assert (partial.suffix, partial.name[0], partial.parent) == (".keras", ".", tmp_path)
            names.add(partial.name)  # else a neighbour could put a link there
            raise ZeroDivisionError
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
    assert len(names) == 2 and all(len(name) > 28 for name in names)


def test_a_private_file_is_never_replaced(tmp_path):
    path = tmp_path / "new" / "token"
    assert private_file(path, "first") is True
    assert private_file(path, "second") is False
    assert path.read_text() == "first" and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_empty_private_file_is_none_unless_it_is_being_written(tmp_path):
    path = tmp_path / "token"
    path.touch()
    assert private_file(path, "mine") is False and path.read_text() == ""
    os.utime(path, (0, 0))
    assert private_file(path, "mine") is True and path.read_text() == "mine"


def test_a_private_file_that_does_not_fit_is_not_left_half(tmp_path, monkeypatch):
    """An empty file of keys would be taken for the keys."""

    def write(handle, *_, **__):
        os.close(handle)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("builtins.open", write)
    with pytest.raises(OSError, match="No space left"):
        private_file(tmp_path / "token", "first")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["", "[1]", "[" * 100_000, b"\xff", '{"a": "x"}', '{"a": 1e400000', "9" * 5000]
)
def test_what_is_no_such_object(text):
    with pytest.raises(ValueError):
        json_object(text, {"a": int, "b": str})
    assert json_object('{"a": 1, "c": []}', {"a": int, "b": str}) == {"a": 1, "c": []}
