"""Errors say what was tried, what stopped it and what to do, wherever they are shown."""

import pickle
import subprocess
import sys

import pytest

from labkit.errors import BadInput, Damaged, LabError, NoRoom, NotReachable, RunFailed, RunStopped

PARTS = ("start 4 workers", "the cluster has 2 CPUs", "lower num_workers to 2")


@pytest.mark.parametrize("kind", [BadInput, Damaged, LabError, NoRoom, NotReachable, RunFailed, RunStopped])
def test_each_survives_its_way_between_processes(kind):
    again = pickle.loads(pickle.dumps(kind(*PARTS)))
    assert type(again) is kind and (again.attempt, again.fact, again.fix) == PARTS
    assert isinstance(again, LabError) and all(part in str(again) for part in PARTS)


def test_a_notebook_shows_three_lines_or_one_and_no_traceback(tmp_path):
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, env=env)
    assert [line for line in done.stdout.splitlines() if line] == [
        "LabError: could not start a node",
        "  because it failed",
        "  fix: look into the log",
        "run: stopped by you after 00:01. The CPUs are free again",
    ]
