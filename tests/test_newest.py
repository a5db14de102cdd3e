"""`make next`: what it installs, whose fault a failure is, and what it prints."""

import sys

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import newest

LONG = "def test():\n>   assert version('Torch')\n"
RAY = "name gone\n.venv-next/lib/python3.11/site-packages/ray/data/x.py:3: AttributeError"


def test_the_bounds_of_what_moves_are_lifted_and_no_others():
    asked = {canonicalize_name(one.name): one for one in map(Requirement, newest.requirements())}
    assert set(newest.MOVING) <= set(asked)
    assert [name for name in newest.MOVING if asked[name].specifier] == []
    assert str(asked["pandas"].specifier) == "<3"  # chosen for another reason, so it stays
    assert asked["ray"].extras == {"data", "default", "train", "tune"}


@pytest.mark.parametrize(
    "name, text, package",
    [
        ("tests.test_private_names::test_is_still_there[ray._raylet:Config]", "torch torch", "ray"),
        ("tests.test_private_names::test_is_still_there[IPython.core:X]", "gone", "other"),
        ("tests.spark.test_spark::test_it", RAY, "ray"),  # the innermost frame is Ray's
        ("tests.spark.test_spark::test_it", "assert 1 == 2", "pyspark"),
        ("tests.models.test_torch_models::test_it", LONG, "torch"),
        ("tests.test_files::test_it", "assert 1 == 2", "other"),
    ],
)
def test_a_failure_is_put_down_to_a_package(name, text, package):
    assert newest.blamed(name, text) == package


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
    assert ["torch", "2.13.0", "2.14.1", "1"] in map(str.split, lines)
    assert ["other", "–", "–", "1"] in map(str.split, lines)
    assert "    assert 1 == 2" in lines
    assert lines[-1] == "2 other packages differ: abc 1 → 2, fresh – → 7"


def test_tests_that_do_not_come_to_their_end_are_a_failure(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/bin/false")
    monkeypatch.setattr(newest, "NEXT", tmp_path)
    assert newest.test("tests", "-m quick") == [("tests -m quick", "did not come to its end")]
