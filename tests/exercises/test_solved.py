"""What was solved is kept: across processes, and past a damaged file."""

import json
import subprocess
import sys

import pytest

from labkit.exercises import solved


def test_what_is_marked_is_read(tmp_path):
    home = tmp_path / "new" / "home"
    assert solved.read(home) == {}
    solved.mark(home, "03-2")
    first = solved.read(home)
    assert list(first) == ["03-2"]
    solved.mark(home, "00-1")
    solved.mark(home, "03-2")
    assert set(solved.read(home)) == {"00-1", "03-2"}
    assert solved.read(home)["03-2"] == first["03-2"]
    assert {path.name for path in home.iterdir()} <= {"exercises.json", ".exercises.lock"}


def test_two_kernels_at_once_lose_nothing(tmp_path):
    code = (
        "import sys, pathlib; from labkit.exercises import solved\n"
        "for n in range(1, 31): solved.mark(pathlib.Path(sys.argv[1]), f'{sys.argv[2]}-{n}')"
    )
    kernels = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path, lesson]) for lesson in ("01", "02", "03")
    ]
    assert [kernel.wait(timeout=60) for kernel in kernels] == [0, 0, 0]
    assert set(solved.read(tmp_path)) == {
        f"{lesson}-{n}" for lesson in ("01", "02", "03") for n in range(1, 31)
    }


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"solved": [1]}', '{"other": 1}', "[" * 100_000])
def test_a_damaged_file_is_put_aside(tmp_path, text):
    path = tmp_path / "exercises.json"
    path.write_text(text)
    assert solved.read(tmp_path) == {}
    solved.mark(tmp_path, "03-2")
    assert list(solved.read(tmp_path)) == ["03-2"]
    assert path.with_suffix(".unreadable").read_text() == text
    assert set(json.loads(path.read_text())) == {"format", "solved"}
