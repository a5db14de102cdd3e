"""What a reader does to a kernel, in mid-run: interrupt it, kill it, restart it, shut it down."""

import os
import subprocess
import sys

import pytest

from kernels import FIT, SETUP, Kernel, kernel
from labkit.local.lab import Lab
from labs import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("labkit/cluster/", "labkit/interrupts.py"),
    pytest.mark.fault,
]


@pytest.fixture(scope="module")
def home(home):
    os.environ["LABKIT_PANEL"] = "text"
    return home


@pytest.fixture(scope="module")
def first(home):
    with kernel() as notebook:
        setup = notebook.run(SETUP)
        assert setup.error is None, setup
        yield notebook


def address(cell):
    (line,) = [line for line in cell.text.splitlines() if line.startswith("address")]
    return line


def begin_fit(notebook: Kernel, until="epoch 1"):
    return notebook.wait(notebook.begin(FIT), until=until)


@pytest.mark.parametrize("moment", ["epoch 1", "start"])
def test_an_interrupted_fit_ends_in_one_line_and_the_same_cell_then_succeeds(first, moment):
    """While a run starts there is no worker yet, and Ray may not even have its handler in place."""
    first.run("epochs = 1000")
    cell = begin_fit(first, until=moment)
    assert not cell.done
    first.interrupt()
    first.wait(cell)  # its thousand epochs would take longer than that
    assert len(cell.error.splitlines()) == 1 and "stopped by you" in cell.error, cell.error
    first.run("while ray.available_resources().get('CPU') != lab.cpus: time.sleep(0.1)")
    first.run("epochs = 2")
    again = first.run(FIT)
    assert again.error is None and "finished finished" in again.text, again
    assert len(again.text.splitlines()) < 20, again.text


def test_a_killed_kernel_then_a_new_one_that_is_shut_down_in_a_fit_then_nothing(home, first):
    before = address(first.run("print('address', lab.address)"))
    first.run("epochs = 1000")
    begin_fit(first)
    with kernel() as second:
        # A cluster without a user is kept for a minute. On a busy machine imports may take most of that.
        second.run("import ray.train.torch, labkit.cluster, labkit.train.panel")
        first.kill()
        setup = second.run(SETUP)
        assert setup.error is None and address(setup) == before, setup
        # The dead kernel's run is gone with it: its CPUs are for this one.
        second.run("epochs = 2")
        again = second.run(FIT)
        assert again.error is None and "finished finished" in again.text, again
        second.run("epochs = 1000")
        begin_fit(second)
        assert second.shut_down() == 0
    stop = [sys.executable, "-m", "labkit", "stop"]
    done = subprocess.run(stop, capture_output=True, text=True, timeout=300, check=True)
    assert "stopped head: raylet" in done.stdout
    assert not Lab(home).running()


@pytest.mark.each_change
def test_a_kernel_that_was_killed_alone_is_followed_by_its_cluster(home):
    """No kernel comes back: the supervisor ends the cluster by itself."""
    with kernel(LABKIT_KEEP_SECONDS="2") as notebook:
        notebook.run("from labkit.local.cluster import start\nlab = start()")
        assert Lab(home).groups() == {"cluster"}
        notebook.kill()
    until(lambda: not Lab(home).running())
