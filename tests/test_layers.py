"""What no contract of import-linter holds: importing the package, or a room's face, loads nothing heavy."""

import subprocess
import sys
from pathlib import Path

import pytest

import labkit

ROOMS = sorted(
    ".".join(path.parent.relative_to(Path(labkit.__file__).parents[1]).parts)
    for path in Path(labkit.__file__).parent.rglob("__init__.py")
)
HEAVY = {"ray", "torch", "tensorflow", "keras", "pyspark", "pandas"}
HEAVY |= {"ipywidgets", "matplotlib", "PIL", "pooch"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_face_is_light(room):
    """Each worker of each engine imports the faces of the rooms that it unpickles something from."""
    code = f"import sys, {room}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


@pytest.mark.parametrize("room", ROOMS)
def test_a_face_hands_out_all_that_it_names(room):
    face = __import__(room, fromlist=["*"])
    for name in getattr(face, "__all__", []):
        assert getattr(face, name) is not None
        assert name in dir(face)


def test_the_map_lists_all_faces():
    rows = (Path(labkit.__file__).parent / "README.md").read_text().splitlines()
    for room in ROOMS:
        names = getattr(__import__(room, fromlist=["*"]), "__all__", [])
        if room == "labkit" or not names:
            continue
        (row,) = (row for row in rows if row.startswith(f"| `{room.removeprefix('labkit.')}` |"))
        assert [f"`{name}`" in row for name in names] == [True] * len(names)
