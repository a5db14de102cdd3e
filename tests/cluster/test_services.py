"""Ray's own Python programs on a node are forks of one process, and otherwise as Ray starts them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import ray

from labkit.cluster import ends
from labkit.local.forkserver import services
from labkit.local.lab import Lab
from labs import until

pytestmark = pytest.mark.slow

# What runs of them on a head and on another node, by the names that `ps` shows.
AGENTS = {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}
ON_HEAD = AGENTS | {"dashboard", "log_monitor", "monitor"}


def titles(home, node):
    """The names of the processes that the node's server has forked."""
    names = set()
    for member in Lab(home).running("cluster", node):
        with contextlib.suppress(psutil.Error):
            if member.program == "services" and not member.is_origin:
                names.add(member.process.cmdline()[0])
    return names


def test_all_of_rays_programs_are_forks_of_one_process_a_node(lab, home):
    for node, expected in (("head", ON_HEAD), ("node-2", AGENTS)):
        assert expected <= titles(home, node)
    new_pythons = []
    for member in Lab(home).running("cluster"):
        with contextlib.suppress(psutil.Error):
            command = member.process.cmdline()
            if command[0].endswith("python") and "client.py" not in " ".join(command):
                new_pythons += [part for part in command if part.endswith(services.PROGRAMS)]
    assert not new_pythons


def test_memory_runs_out_in_a_worker_and_not_in_an_agent(lab, home):
    """Without its agent a raylet ends, so Linux must not choose it first."""
    for member in Lab(home).running("cluster"):
        with contextlib.suppress(psutil.Error):
            if member.program == "services":
                score = int(Path(f"/proc/{member.pid}/oom_score_adj").read_text())
                assert score == int(Path("/proc/self/oom_score_adj").read_text())


@ray.remote(num_cpus=0)
class Process:
    def pid(self):
        return os.getpid()


def test_how_an_actor_ended_is_known_where_ray_hears_late_of_it(lab, monkeypatch):
    actor = Process.remote()
    pid = ray.get(actor.pid.remote())
    os.kill(pid, signal.SIGKILL)
    late = f"The actor {actor._actor_id.hex()} is unavailable: The actor is temporarily unavailable: …"
    assert ends.is_an_end(late)
    until(lambda: ends.process_of(late) == pid)  # a busy dashboard may answer late
    assert "SIGKILL" in ends.how_it_ended(late)
    monkeypatch.setattr(type(lab), "runs_here", lambda self, node: False)
    assert ends.process_of(late) is None  # its node is lost: how the process ended isn't why


SERVER = """
import os, socket, sys
from labkit.local.forkserver import services
listener = socket.socket(fileno=int(sys.argv[1]))
starter = os.pidfd_open(os.getppid())  # the test, in place of `ray start`
request = services._serve(listener, starter, {**os.environ, **services._FOR_AGENTS})
if request is not None:
    services._become(request)
"""
TELL = "import os, sys; print(os.getppid(), os.environ.get('RAY_NODE_ID'), sys.argv[1:], flush=True)"
# pytest changes its own variable between a fixture and the test.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


@pytest.fixture
def server(tmp_path):
    """The pid of a server of forks, and its socket."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        number = listener.fileno()
        command = [sys.executable, "-c", SERVER, str(number)]
        process = subprocess.Popen(command, env=ENVIRONMENT, pass_fds=[number])
    yield process.pid, path
    process.kill()
    process.wait()


def client_for(path, script, *arguments, **variables):
    """The client that asks for a fork at a socket, in place of python with these arguments."""
    client = Path(services.__file__).with_name("client.py")
    command = [sys.executable, "-I", "-S", str(client), str(path), "-u", str(script), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env={**ENVIRONMENT, **variables}, stdin=pipe, stdout=pipe, text=True)


def test_a_program_is_forked_if_its_variables_are_those_of_the_node(server, tmp_path):
    pid, path = server
    script = tmp_path / "agent.py"
    script.write_text(TELL)

    def printed(*arguments, **variables):
        return client_for(path, script, *arguments, **variables).communicate(timeout=300)[0]

    assert printed("--head", RAY_NODE_ID="7") == f"{pid} 7 ['--head']\n"
    # A library may read any other variable when it is imported; and agents get the way to watch a raylet.
    for variables in ({"OF_THE_READER": "1"}, dict.fromkeys(services._FOR_AGENTS, "0")):
        of_a_new_python = printed(**variables)
        assert of_a_new_python.endswith(" None []\n") and of_a_new_python.split()[0] != str(pid)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as nonsense:
        nonsense.connect(str(path))
        socket.send_fds(nonsense, [json.dumps({"argv": []}).encode()], [0, 1, 2])
    assert printed().startswith(f"{pid} ")


def test_a_client_that_is_killed_takes_its_program_along(server, tmp_path):
    pid, path = server
    script = tmp_path / "monitor.py"
    script.write_text("input()")
    with client_for(path, script) as client:
        until(lambda: psutil.Process(pid).children())
        client.kill()
        until(lambda: not psutil.Process(pid).children())
