"""Errors say what was tried, what stopped it and what to do, wherever they are shown."""

import copy
import pickle
import subprocess
import sys

import pytest

from labkit import errors
from labkit.errors import LabError, RunStopped

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type)]
PARTS = ("start 4 workers", "the cluster has 2 CPUs", "lower num_workers to 2")


def test_three_lines_and_one_for_a_stop():
    assert str(LabError(*PARTS)) == (
        "could not start 4 workers\n  because the cluster has 2 CPUs\n  fix: lower num_workers to 2"
    )
    stopped = RunStopped("03-torch", "stopped by you after 00:12", "The CPUs are free again")
    assert str(stopped) == "03-torch: stopped by you after 00:12. The CPUs are free again"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_survives_its_way_between_processes(kind):
    error = kind(*PARTS)
    for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert type(again) is kind and str(again) == str(error)
        assert (again.attempt, again.fact, again.fix) == PARTS
    assert isinstance(error, LabError) and isinstance(error, Exception)
    assert all(part in repr(error) for part in PARTS)
    assert kind.__doc__


def test_a_notebook_shows_these_lines_and_no_traceback(tmp_path):
    """As IPython does it, in a process of its own."""
    code = """
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
config = Config()
config.HistoryManager.enabled = False
shell = InteractiveShell.instance(config=config, colors="NoColor")
shell.run_cell("from labkit.errors import LabError, RunStopped")
shell.run_cell("raise LabError('start a node', 'it failed', 'look into the log')")
shell.run_cell("raise RunStopped('run', 'stopped by you after 00:01', 'The CPUs are free again')")
"""
    env = {"IPYTHONDIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env)
    assert [line for line in done.stdout.splitlines() if line] == [
        "LabError: could not start a node",
        "  because it failed",
        "  fix: look into the log",
        "run: stopped by you after 00:01. The CPUs are free again",
    ]
