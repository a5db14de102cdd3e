"""The folder for temporary files of what the lab starts: short and usable."""

import sys

import labs
from labkit.local import temporary
from labkit.local.lab import Lab

# As multiprocessing's fork server and DataLoader's workers listen.
LISTEN = """
import tempfile
from multiprocessing.connection import Listener
with Listener(family="AF_UNIX"):
    print("listens in", tempfile.gettempdir())
"""


def test_what_the_lab_starts_can_listen_in_its_folder(tmp_path, monkeypatch):
    folder = tmp_path / ("slurm-job-" + "4" * 60)
    folder.mkdir()
    with labs.home() as home:
        for name in temporary.VARIABLES:
            monkeypatch.setenv(name, str(folder))
        started = Lab(home).start([sys.executable, "-c", LISTEN], group="one", log=home / "log")
        labs.until(lambda: started.status() is not None, 60)
        assert (home / "log").read_text() == "listens in /tmp\n"
    assert folder.exists()


def test_a_folder_that_cannot_be_used_is_left_out_and_another_one_stays(tmp_path):
    (tmp_path / "file").touch()
    for folder in ("relative", tmp_path / "gone", tmp_path / "file"):
        assert temporary.without_unusable({"A": "1", "TMP": f"{folder}"}) == {"A": "1"}
    for variables in ({}, {"A": "1"}, {"TMPDIR": "/tmp"}):
        assert temporary.without_unusable(variables) == variables
