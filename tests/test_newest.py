"""`make next`: what it installs and what it prints."""

import sys

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import newest


def test_the_bounds_of_what_moves_are_lifted_and_no_others():
    asked = {canonicalize_name(one.name): one for one in map(Requirement, newest.requirements())}
    assert set(newest.MOVING) <= set(asked)
    assert [name for name in newest.MOVING if asked[name].specifier] == []
    assert str(asked["pandas"].specifier) == "<3"  # chosen for another reason, so it stays
    assert asked["ray"].extras == {"data", "default", "train", "tune"}


def test_a_report_of_pytest_becomes_the_table(tmp_path, monkeypatch):
    (tmp_path / "test_two.py").write_text(
        "import pytest\n@pytest.fixture\ndef broken():\n    raise OSError('no torch')\n"
        "def test_right():\n    pass\ndef test_wrong():\n    assert 1 == 2\n"
        "def test_setup(broken):\n    pass\n"
    )
    # This interpreter in the place of the one with the newest versions.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    monkeypatch.setattr(newest, "NEXT", tmp_path)
    monkeypatch.setattr(newest, "ROOT", tmp_path)
    failed = newest.test("pytest", "-q", "-p", "no:cacheprovider", str(tmp_path))
    assert [name.partition("::")[2] for name, _ in failed] == ["test_wrong", "test_setup"]
    pinned, found = "torch==2.13.0+cpu\nabc==1\nboth==3\n", "torch==2.14.1\nabc==2\nboth==3\nfresh==7\n"
    lines = newest.table(failed, newest.versions(pinned), newest.versions(found)).splitlines()
    assert lines[:3] == ["torch 2.13.0 → 2.14.1", "abc 1 → 2", "fresh – → 7"]
    assert "2 failed tests" in lines and "    assert 1 == 2" in lines
