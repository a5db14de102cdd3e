"""The folder for temporary files of what the lab starts: short and usable."""

import sys
import tempfile
from pathlib import Path

import pytest

from labkit.local import temporary
from labkit.local.lab import Lab
from labs import until

# As multiprocessing's fork server and DataLoader's workers listen.
LISTEN = """
import sys, tempfile
from multiprocessing.connection import Listener
with Listener(family="AF_UNIX") as listener:
    print("listens in", tempfile.gettempdir(), flush=True)
    sys.stdin.read() if len(sys.argv) > 1 else None
"""


@pytest.fixture
def home():
    with tempfile.TemporaryDirectory(prefix="lk", dir="/tmp") as folder:
        yield Path(folder)
        Lab(Path(folder)).stop()


@pytest.mark.parametrize("kind", ["long", "gone", "relative", "a file", "of TMP", "short"])
def test_what_the_lab_starts_can_listen_in_its_folder(home, tmp_path, monkeypatch, kind):
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    place = home if kind == "relative" else tmp_path  # a short path stays
    place.mkdir(exist_ok=True)
    monkeypatch.chdir(place)
    folder = place / ("slurm-job-" + "4" * 60 if kind in ("long", "of TMP") else "some")
    if kind == "a file":
        folder.touch()
    elif kind != "gone":
        folder.mkdir()
    if kind == "short":
        folder = home
    monkeypatch.setenv("TMP" if kind == "of TMP" else "TMPDIR", "some" if kind == "relative" else str(folder))
    log = home / "log"
    started = Lab(home).start([sys.executable, "-c", LISTEN], group="one", log=log)
    until(lambda: started.status() is not None, 60)
    printed = log.read_text()
    assert "listens in " in printed, printed
    where = Path(printed.split("listens in ")[1].strip())
    # Without the variable, Python uses /tmp.
    assert where == (folder.resolve() if kind == "short" else Path("/tmp"))
    Lab(home).stop()
    until(lambda: not Lab(home).running(), 30)
    assert folder.exists() == (kind != "gone")


def test_an_environment_that_fits_stays():
    for variables in ({}, {"A": "1"}, {"TMPDIR": "/tmp"}):
        assert temporary.without_unusable(variables) == variables
