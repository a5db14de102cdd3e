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

from labkit.system import family, supervision
from labs import python, until

pytestmark = pytest.mark.fault

KILLS = int(os.environ.get("KILLS", "1"))
KEEP = 5
START = "from labkit import cluster; lab = cluster.start(); print('up', flush=True)\n"
WORK = """
import ray, sys
work, done = ray.remote(lambda: 1), 0
while True:
    done += ray.get(work.remote())
    print(done, file=open(sys.argv[1], "w"))
"""


@pytest.fixture(scope="module", autouse=True)
def _keep(home):
    os.environ["LABKIT_KEEP_SECONDS"] = str(KEEP)


def begin(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def kill(process):
    process.kill()
    process.communicate()


def ray_start(home):
    """The process of `ray start`, while it runs."""
    for one in family.running(home, "cluster", "head"):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if one.is_origin and "ray.scripts.scripts" in " ".join(one.process.cmdline()):
                return one.process
    return None


def test_a_kernel_or_a_ray_start_is_killed_and_then_a_supervisor_while_its_cluster_works(home, tmp_path):
    progress = tmp_path / "progress"

    def done():
        return int(progress.read_text() or 0) if progress.exists() else 0

    def supervisors():
        return [one.process for one in family.running(home, family.SUPERVISOR) if one.program == "supervisor"]

    for number in range(KILLS):
        after = random.uniform(0, 15)
        print(f"kernel {number}: killed after {after:.1f} s")
        one = begin(START + WORK, progress)
        time.sleep(after)
        kill(one)
        until(lambda: not family.running(home))
        one = begin(START)
        until(lambda: ray_start(home))
        victim, after = ray_start(home), random.uniform(0, 3)
        time.sleep(after)
        if victim is not None and victim.is_running():
            victim.kill()
        said = one.communicate(timeout=300)[0]
        print(f"ray start {number}: killed after {after:.1f} s; the kernel said {said!r}")
        until(lambda: not family.running(home))
    progress.unlink(missing_ok=True)
    one = begin(START + WORK, progress)
    try:
        until(lambda: done() > 5)  # the next start works
        for number in range(KILLS):
            time.sleep(random.uniform(0, 2))
            (old,), before = supervisors(), done()
            old.kill()
            until(lambda: supervision.users(home) == {"cluster": [one.pid]})
            until(lambda before=before: done() > before + 5)
            print(f"supervisor {number}: the work went on from task {before} to {done()}")
        for process in supervisors():
            process.kill()
        stopped = python("from labkit.__main__ import main; main(['stop'])").stdout
        assert "stopped head: raylet" in stopped, stopped
        until(lambda: not family.running(home))
    finally:
        kill(one)


ONE = """
import ray, sys
print(sum(ray.get([ray.remote(lambda: 1).remote() for _ in range(2)])), flush=True)
sys.stdin.readline()
lab.stop()
"""


@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="only root makes namespaces")
def test_two_hosts_with_one_home_both_have_a_cluster_and_end_only_their_own(home):
    """As two containers. That each namespace makes another host is in test_supervisor.py."""
    up = "ip link set lo up; exec " + shlex.join([sys.executable, "-c", START + ONE])
    space = ["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    commands = [["sh", "-c", up], ["unshare", *space, "sh", "-c", up]]
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    both = here, there = [subprocess.Popen(command, text=True, **pipe) for command in commands]
    try:
        for one in both:  # a slow start prints how far it is
            assert any(line == "2\n" for line in one.stdout), "it ended before"
        mine = {one.pid for one in family.running(home)}
        there.communicate("stop\n", timeout=300)  # it ends its cluster
        assert {one.pid for one in family.running(home, "cluster") if one.is_origin} <= mine
        assert [one.program for one in family.running(home, "cluster", "head")].count("raylet") > 0
        here.communicate("stop\n", timeout=300)
    finally:
        for one in both:
            kill(one)
    until(lambda: not family.running(home))
