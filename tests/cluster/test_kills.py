"""Kill -9 at random moments, of a kernel, a `ray start`, a supervisor: nothing stays, the next start works.

KILLS=20 python -m pytest tests/cluster/test_kills.py -s
"""

import contextlib
import os
import random
import shlex
import subprocess
import sys
import time

import psutil
import pytest

from labkit.local import family
from labkit.local.lab import Lab
from labs import begin, python, until

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/cluster/"), pytest.mark.fault]

KILLS = int(os.environ.get("KILLS", "1"))
KEEP = 5
START = "from labkit.local import cluster; lab = cluster.start(); print('up', flush=True)\n"
WORK = """
import ray
work = ray.remote(lambda: 1)
while True:
    ray.get(work.remote())
"""
FIT = """
import sys, time
from ray.train import RunConfig, ScalingConfig, get_context, report
from ray.train.torch import TorchTrainer

def loop(config):
    for step in range(100_000):
        time.sleep(0.1)
        if get_context().get_world_rank() == 0:
            print(step, file=open(config["progress"], "w"))

config = {"progress": sys.argv[1]}
TorchTrainer(loop, train_loop_config=config, scaling_config=ScalingConfig(num_workers=2)).fit()
"""


@pytest.fixture(scope="module", autouse=True)
def _keep(home):
    os.environ["LABKIT_KEEP_SECONDS"] = str(KEEP)


def wait_for(process, text):
    """A slow start prints how far it is."""
    assert any(line.endswith(f"{text}\n") for line in process.stdout), "it ended before"


def kill(process):
    process.kill()
    process.communicate()


def wait_until_nothing_runs(home):
    until(lambda: not Lab(home).running())


def test_a_kernel_that_is_killed_at_any_moment(home):
    began = time.monotonic()
    first = begin(START + WORK)
    wait_for(first, "up")
    longest = time.monotonic() - began + 3
    kill(first)
    for number in range(KILLS):
        wait_until_nothing_runs(home)
        after = random.uniform(0, longest)
        print(f"kernel {number} is killed after {after:.1f} s")
        kernel = begin(START + WORK)
        time.sleep(after)
        kill(kernel)
    wait_until_nothing_runs(home)
    assert "up" in python(START).stdout


def ray_start(home):
    """The process of `ray start`, while it runs."""
    for member in Lab(home).running("cluster", "head"):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if member.is_origin and "forkserver.services" in " ".join(member.process.cmdline()):
                return member.process
    return None


def test_a_ray_start_that_is_killed_at_any_moment(home):
    for number in range(KILLS):
        kernel = begin(START)
        until(lambda: ray_start(home))
        victim, after = ray_start(home), random.uniform(0, 3)
        time.sleep(after)
        if victim is not None and victim.is_running():
            victim.kill()
        output = kernel.communicate(timeout=300)[0]
        print(f"ray start {number}: killed after {after:.1f} s; the kernel said {output!r}")
        wait_until_nothing_runs(home)
    assert "up" in python(START).stdout


def test_a_supervisor_that_is_killed_again_and_again_while_a_run_goes_on(home, tmp_path):
    progress = tmp_path / "progress"
    kernel = begin(START + FIT, progress)

    def step():
        return int(progress.read_text() or 0) if progress.exists() else 0

    def supervisors():
        members = Lab(home).running(family.SUPERVISOR)
        return [member.process for member in members if member.program == "supervisor"]

    try:
        until(lambda: step() > 5)
        for number in range(KILLS):
            time.sleep(random.uniform(0, 2))
            (old,), before = supervisors(), step()
            old.kill()
            until(lambda: Lab(home).users() == {"cluster": [kernel.pid]})
            until(lambda before=before: step() > before + 5)
            print(f"supervisor {number}: the run went on from step {before} to {step()}")
        for process in supervisors():
            process.kill()
        stopped = python("from labkit.__main__ import main; main(['stop'])").stdout
        assert "stopped head: raylet" in stopped, stopped
        wait_until_nothing_runs(home)
    finally:
        kill(kernel)


ONE = (
    START
    + """
import ray
print(sum(ray.get([ray.remote(lambda: 1).remote() for _ in range(2)])), flush=True)
sys.stdin.readline()
lab.stop()
"""
)


@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="only root makes namespaces")
@pytest.mark.parametrize("space", ["--net", "--pid --fork --kill-child --mount-proc"])
def test_two_hosts_with_one_home_both_have_a_cluster_and_end_only_their_own(home, space):
    """As two machines, or two containers."""
    up = "ip link set lo up; exec " + shlex.join([sys.executable, "-c", "import sys\n" + ONE])
    commands = [["sh", "-c", up], ["unshare", *space.split(), "sh", "-c", up]]
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    here, there = (subprocess.Popen(command, text=True, **pipe) for command in commands)
    try:
        wait_for(here, "2")
        wait_for(there, "2")
        mine = {member.pid for member in Lab(home).running()}
        there.communicate("stop\n", timeout=300)  # it ends its cluster
        assert {member.pid for member in Lab(home).running("cluster") if member.is_origin} <= mine
        assert [member.program for member in Lab(home).running("cluster", "head")].count("raylet") > 0
        here.communicate("stop\n", timeout=300)
    finally:
        kill(here)
        kill(there)
    wait_until_nothing_runs(home)
