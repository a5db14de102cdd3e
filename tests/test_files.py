"""Files that are written: complete or absent, and private where they have to be."""

import errno
import multiprocessing
import os
import stat
import threading

import pytest

from labkit.files import atomic_path, atomic_write, has_type, json_object, private_file


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "new" / "record.json"
    assert atomic_write(path, "ü") == path
    assert path.read_bytes() == "ü".encode()
    atomic_write(str(path), b"\0")
    assert path.read_bytes() == b"\0"
    assert list(path.parent.iterdir()) == [path]


def test_what_fails_on_the_way_changes_nothing(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError), atomic_path(path, mode=0o600) as partial:
        assert stat.S_IMODE(partial.stat().st_mode) == 0o600  # before anything is written
        partial.write_text("half")
        assert (partial.suffix, partial.name[0], partial.parent) == (".keras", ".", tmp_path)
        raise ZeroDivisionError
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_that_a_neighbour_can_foresee_is_not_followed(tmp_path):
    """In a folder that others may write to: of a temporary file's name, they know nothing but its end."""
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / f".part-{os.getpid()}-{threading.get_ident()}-report.html").symlink_to(mine)
    names = set()
    for _ in range(2):
        with atomic_path(tmp_path / "report.html") as partial:
            names.add(partial.name)
            partial.write_text("new")
    assert mine.read_text() == "mine" and len(names) == 2 and all(len(name) > 28 for name in names)


def test_a_private_file_is_never_replaced(tmp_path):
    path = tmp_path / "new" / "token"
    assert private_file(path, "first") is True
    assert private_file(path, "second") is False
    assert path.read_text() == "first"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_private_file_on_a_disk_without_hard_links(tmp_path, monkeypatch, code):
    """As exFAT and SMB are: a cluster and a store could not be started there."""

    def link(*_):
        raise OSError(code, "no hard links")

    monkeypatch.setattr(os, "link", link)
    path = tmp_path / "token"
    assert (private_file(path, "first"), private_file(path, "second")) == (True, False)
    assert path.read_text() == "first" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_of_many_that_try_at_once_one_creates_it(tmp_path):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        created = pool.starmap(private_file, [(tmp_path / "token", str(n)) for n in range(40)])
    assert created.count(True) == 1
    assert (tmp_path / "token").read_text() == str(created.index(True))


@pytest.mark.parametrize(
    "value, kind, good",
    [
        (1, int, True), (1, float, True), (1.5, int, False), (10**400, float, False),
        (None, float | None, True), ("x", float | None, False), ([1, 2.5], list[float], True),
        ([1, "x"], list[float], False),
        ({"a": [1]}, dict[str, list[int]], True), ({"a": ["x"]}, dict[str, list[int]], False),
        ("abc", list[str], False), ({}, list, False), (float("nan"), float, True),
    ],
)  # fmt: skip
def test_the_type_of_a_value(value, kind, good):
    assert has_type(value, kind) is good


@pytest.mark.parametrize(
    "text", ["", "[1]", "[" * 100_000, b"\xff", '{"a": "x"}', '{"a": 1e400000', "9" * 5000]
)
def test_what_is_no_such_object(text):
    with pytest.raises(ValueError):
        json_object(text, {"a": int, "b": str})
    assert json_object('{"a": 1, "c": []}', {"a": int, "b": str}) == {"a": 1, "c": []}
