"""Workers forked from a process that has done their imports: as if each were a new Python."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from labkit.cluster.forkserver import client as forkserver_client
from labkit.cluster.forkserver import server as forkserver

TELL = """
import json, os, random, sys
about = {
    "argv": sys.argv, "path": sys.path[0], "name": __name__, "folder": os.getcwd(), "pid": os.getpid(),
    "parent": os.getppid(), "group": os.getpgrp(), "nice": os.nice(0), "random": random.random(),
    "word": os.environ.get("WORD"), "loaded": "wave" in sys.modules, "input": sys.stdin.read(),
}
print(json.dumps(about), flush=True)
sys.exit(7)
"""
SLEEP = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
LINKS = """
import json, os, sys
descriptors = [name for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")]
print(json.dumps([os.readlink(f"/proc/self/fd/{name}") for name in descriptors]), flush=True)
sys.exit(7)
"""
FORKSERVER = [sys.executable, "-P", "-m", "labkit.cluster.forkserver.server"]


@pytest.fixture
def socket(tmp_path):
    return tmp_path / "fork"


def tell(server, socket, **environment):
    """As the lab tells a server for which node it is: its name ends on the job and the raylet's pid."""
    server.stdin.write(
        json.dumps({"socket": f"{socket}-0a000000-1", "environment": environment}).encode() + b"\n"
    )
    server.stdin.close()


@pytest.fixture
def started():
    """Processes that are killed at the end of the test, clients before the server that they ask."""
    processes = []
    yield processes
    for process in reversed(processes):
        process.kill()
        process.communicate()


@pytest.fixture
def start(started, tmp_path):
    """Starts a server that does not know yet for which node it is; what it says goes into `log`."""

    def start(command, **options):
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, **options
            )
        started.append(process)
        return process

    return start


@pytest.fixture
def server(start, socket, tmp_path):
    """A server that has imported `wave`."""
    process = start([*FORKSERVER, "wave", "no_such_module"])
    tell(process, socket)
    until(lambda: "ready" in (tmp_path / "log").read_text())
    return process


@pytest.fixture
def run(started, socket, tmp_path):
    """Runs a script as Ray runs a worker."""

    def run(code, *arguments, **variables):
        script = tmp_path / "script.py"
        script.write_text(code)
        command = [
            sys.executable,
            "-I",
            "-S",
            forkserver_client.__file__,
            str(socket),
            str(script),
            *arguments,
        ]
        environment = {**os.environ, "RAY_JOB_ID": "0a000000", "RAY_RAYLET_PID": "1", **variables}
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdin=pipe, stdout=pipe, stderr=pipe, text=True,
            start_new_session=True, preexec_fn=lambda: os.nice(3),
        )  # fmt: skip
        started.append(process)
        return process

    return run


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def told(process):
    out, err = process.communicate("some input", timeout=30)
    assert process.returncode == 7, err
    return json.loads(out)


def ended(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_forked_worker_is_as_a_new_python_with_the_imports_done(server, run, tmp_path):
    about = told(run(TELL, "--one", "two words", WORD="here"))
    assert about["parent"] == server.pid and about["loaded"]
    assert about["argv"] == [str(tmp_path / "script.py"), "--one", "two words"]
    assert about["name"] == "__main__" and about["path"] == about["folder"] == str(tmp_path)
    assert about["word"] == "here" and about["input"] == "some input"
    assert about["group"] == about["pid"]
    assert about["nice"] == os.nice(0) + 3
    assert (tmp_path / "log").read_text().count("could not import no_such_module") == 1


def test_no_two_workers_draw_the_same_random_numbers(server, run):
    assert told(run(TELL))["random"] != told(run(TELL))["random"]


def test_only_this_user_may_ask(server, socket):
    assert stat.S_IMODE(Path(f"{socket}-0a000000-1").stat().st_mode) == 0o600


@pytest.mark.parametrize("variables", [{"RAY_RAYLET_PID": "2"}, {"PYTHONHASHSEED": "5"}])
def test_what_cannot_be_served_alike_is_a_new_python(server, run, variables, tmp_path):
    """A node without a server, or a variable that counts when Python starts."""
    about = told(run(TELL, "--one", WORD="there", **variables))
    assert about["parent"] == os.getpid() and not about["loaded"]
    assert about["argv"][1:] == ["--one"] and about["word"] == "there" and about["input"] == "some input"
    if "PYTHONHASHSEED" in variables:
        assert "refused, since it differs in PYTHONHASHSEED" in (tmp_path / "log").read_text()


def test_without_a_server_it_is_a_new_python(run):
    assert told(run(TELL))["parent"] == os.getpid()


def test_a_server_that_dies_while_asked_leaves_a_new_python(server, run):
    server.send_signal(signal.SIGSTOP)
    process = run(TELL)
    asks = psutil.Process(process.pid)
    until(lambda: asks.net_connections("unix") and asks.status() == psutil.STATUS_SLEEPING)
    server.kill()
    assert told(process)["parent"] == os.getpid()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_who_ends_the_client_ends_its_worker(server, run, number):
    client = run(SLEEP)
    worker = int(client.stdout.readline())
    assert worker != client.pid
    client.send_signal(number)
    client.wait(30)
    until(lambda: ended(worker))
    assert told(run(TELL))["parent"] == server.pid  # the server goes on


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGABRT])
def test_the_client_ends_as_its_worker_did(server, run, number):
    client = run(SLEEP)
    os.kill(int(client.stdout.readline()), number)
    assert client.wait(30) == -number


def test_workers_outlive_the_server(server, run):
    client = run(SLEEP)
    worker = int(client.stdout.readline())
    server.kill()
    client.wait(30)
    assert not ended(worker)
    os.kill(worker, signal.SIGKILL)


def test_the_server_ends_when_its_owner_and_its_workers_are_gone(run, socket, tmp_path):
    owner = (
        "import json, subprocess, sys, time\n"
        "server = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)\n"
        "server.stdin.write(json.dumps({'socket': sys.argv[1], 'environment': {}}).encode() + b'\\n')\n"
        "server.stdin.close()\n"
        "print(server.pid, flush=True)\ntime.sleep(60)"
    )
    command = [sys.executable, "-c", owner, f"{socket}-0a000000-1", *FORKSERVER, "wave"]
    kernel = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    server = int(kernel.stdout.readline())
    until(Path(f"{socket}-0a000000-1").exists)
    client = run(SLEEP)
    worker = int(client.stdout.readline())
    kernel.kill()
    kernel.communicate()
    time.sleep(1.5)  # it looks once a second
    assert not ended(server) and not ended(worker)
    os.kill(worker, signal.SIGTERM)
    until(lambda: ended(server))
    assert not Path(f"{socket}-0a000000-1").exists()


def test_a_worker_has_no_descriptors_of_another_one(server, run):
    """Its copy of the other one's connection would hide from that client that the server has ended."""
    first = run(SLEEP)
    worker = int(first.stdout.readline())
    links = told(run(LINKS))
    assert not [link for link in links if "pidfd" in link or link.startswith("socket")], links
    third = run(SLEEP)
    other = int(third.stdout.readline())
    server.kill()
    assert first.wait(30) == third.wait(30) == 0
    for pid in (worker, other):
        os.kill(pid, signal.SIGKILL)


def test_nothing_is_forked_while_a_thread_runs(start, run, socket, tmp_path, monkeypatch):
    """A lock that the thread holds would stay held in the fork."""
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    server = start([*FORKSERVER, "threaded"])
    tell(server, socket)
    until(lambda: "ready" in (tmp_path / "log").read_text())
    assert told(run(TELL))["parent"] == os.getpid()
    assert "refused, since these threads run: python" in (tmp_path / "log").read_text()


@pytest.fixture
def early(start):
    """A server that nobody has told for which node it is."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return start([*FORKSERVER, "wave", "pyarrow", "ray"], env=environment)


def maps(process):
    return Path(f"/proc/{process.pid}/maps").read_text()


def test_a_server_imports_before_there_is_a_node_and_ray_not_before_it_is_told(
    early, run, socket, monkeypatch
):
    for name in [name for name in os.environ if name.startswith("RAY_")]:  # other tests' own
        monkeypatch.delenv(name)
    until(lambda: "libarrow" in maps(early))
    assert "_raylet.so" not in maps(early) and not Path(f"{socket}-0a000000-1").exists()
    tell(early, socket, RAY_JOB_ID="0a000000", RAY_RAYLET_PID="1")
    until(Path(f"{socket}-0a000000-1").exists)  # at once: who asks during the imports waits for them
    same = told(run(TELL, RAY_JOB_ID="0a000000"))
    assert same["parent"] == early.pid and same["loaded"]
    other = told(run(TELL, RAY_JOB_ID="0b000000"))  # Ray read the other one when it was imported
    assert other["parent"] != early.pid and not other["loaded"]


def test_what_the_first_optimizer_imports_comes_at_leisure(start, run, socket, tmp_path, monkeypatch):
    code = (
        "import sys; from labkit.cluster.forkserver import server as forkserver;"
        "forkserver._LATER = {'colorsys'};"
        "forkserver.serve(['colorsys', 'wave'])"
    )
    server = start([sys.executable, "-c", code])
    tell(server, socket)
    until(lambda: "ready" in (tmp_path / "log").read_text())
    assert "at leisure" not in (tmp_path / "log").read_text()
    script = TELL.replace('"wave" in', '"colorsys" in')
    until(lambda: "at leisure" in (tmp_path / "log").read_text())
    assert told(run(script))["loaded"]


def test_a_server_for_which_no_node_came_ends(early, tmp_path):
    early.stdin.close()
    assert early.wait(30) == 0
    assert not (tmp_path / "log").read_text()


def test_nonsense_on_the_socket_harms_nobody(server, run, socket):
    import socket as sockets

    for nonsense in (b"", b"\xff\xff", b"\x00\x00\x00\x02{}", b"\x00\x00\x00\x05[1,2]"):
        with sockets.socket(sockets.AF_UNIX) as one:
            one.connect(f"{socket}-0a000000-1")
            one.sendall(nonsense)
    assert told(run(TELL))["parent"] == server.pid


ALIKE = """
import os, sys
os.environ.update(RAY_JOB_ID="01000000", RAY_RAYLET_PID="1")
import ray
if sys.argv[1] == "drawn":
    ray.ObjectRef.from_random()
from labkit.cluster.forkserver import ids as forked_ids
print("alike" if forked_ids.forks_are_alike() else "different")
"""


@pytest.mark.parametrize("before, expected", [("fresh", "different"), ("drawn", "alike")])
def test_forks_that_would_draw_the_same_ids_are_noticed(before, expected):
    """Ray's generators are not made for forks: ids drawn before one make all that come after it the same."""
    told = subprocess.run([sys.executable, "-c", ALIKE, before], capture_output=True, text=True, timeout=60)
    assert told.stdout.split() == [expected], told.stderr


def test_nothing_is_forked_that_would_draw_the_same_ids(socket, tmp_path):
    (tmp_path / "draws.py").write_text("import ray\nray.ObjectRef.from_random()\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    line = json.dumps({"socket": f"{socket}-0a000000-1", "environment": {}}) + "\n"
    command = [*FORKSERVER, "draws"]
    told = subprocess.run(command, env=environment, input=line, capture_output=True, text=True, timeout=60)
    assert "two forks draw the same ids" in told.stdout
    assert not Path(f"{socket}-0a000000-1").exists()


def test_what_draws_ids_at_leisure_ends_the_service_and_no_worker(start, run, socket, tmp_path, monkeypatch):
    (tmp_path / "draws.py").write_text("import ray\nray.ObjectRef.from_random()\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    code = (
        "from labkit.cluster.forkserver import server;"
        "server._LATER = {'draws'}; server.serve(['draws', 'wave'])"
    )
    server = start([sys.executable, "-c", code])
    tell(server, socket)
    until(lambda: "ready" in (tmp_path / "log").read_text())
    worker = int((client := run(SLEEP)).stdout.readline())
    assert psutil.Process(worker).ppid() == server.pid
    until(lambda: "two forks draw the same ids" in (tmp_path / "log").read_text())
    until(lambda: not Path(f"{socket}-0a000000-1").exists())
    assert told(run(TELL))["parent"] == os.getpid()
    assert not ended(worker) and client.poll() is None


IDS = """
import json, sys
import ray, remote
told = {"id": ray.ObjectRef.from_random().hex(), "class": remote.Actor.__ray_metadata__.class_id.hex()}
print(json.dumps(told), flush=True)
sys.exit(7)
"""


def test_modules_with_actor_classes_draw_nothing(start, run, socket, tmp_path, monkeypatch):
    """Each such class has an id; whose generator it came from, forks would have in common."""
    (tmp_path / "remote.py").write_text("import ray\n@ray.remote\nclass Actor: ...\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("RAY_JOB_ID", "0a000000")
    monkeypatch.setenv("RAY_RAYLET_PID", "1")
    server = start([*FORKSERVER, "ray", "remote"])
    tell(server, socket)
    until(Path(f"{socket}-0a000000-1").exists)
    one, other = told(run(IDS)), told(run(IDS))
    assert one["id"] != other["id"] and one["class"] == other["class"]
    assert len(one["class"]) == 56 and set(one["class"]) != {"f"}


@pytest.mark.parametrize(
    "end, status, out, error",
    [
        ("", 0, "atexit", ""),
        ("sys.exit()", 0, "atexit", ""),
        ("sys.exit(3)", 3, "atexit", ""),
        ("sys.exit('no such thing')", 1, "atexit", "no such thing"),
        ("raise ValueError('wrong')", 1, "atexit", "ValueError: wrong"),
        ("threading.Thread(target=lambda: (time.sleep(.2), print('thread'))).start()", 0, "thread", ""),
        ("os.kill(os.getpid(), 9)", -9, "", ""),
    ],
)
def test_a_forked_worker_ends_as_python_does(server, run, end, status, out, error):
    """What it printed comes out, its threads are waited for, and what is registered for the end is called."""
    code = (
        "import atexit, os, sys, threading, time\n"
        f"print(os.getppid(), flush=True); atexit.register(lambda: print('atexit', end=''))\n{end}"
    )
    process = run(code)
    said, complained = process.communicate(timeout=30)
    parent, _, rest = said.partition("\n")
    assert (int(parent), process.returncode) == (server.pid, status)
    assert rest.startswith(out) and error in complained


@pytest.mark.parametrize(
    "here, there, loaded, names",
    [
        ({}, {"WORD": "1"}, {"sys", "ray"}, []),
        ({"RAY_JOB_ID": "1"}, {"RAY_JOB_ID": "2"}, {"ray"}, ["RAY_JOB_ID"]),
        ({"RAY_JOB_ID": "1"}, {}, {"sys"}, []),
        ({}, {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "1"}, {"ray"}, []),
        ({"OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "1"}, {"numpy"}, ["OMP_NUM_THREADS"]),
        ({}, {"TF_USE_LEGACY_KERAS": "1"}, {"torch"}, []),
        ({}, {"TF_USE_LEGACY_KERAS": "1", "LD_PRELOAD": ""}, {"tensorflow"}, ["TF_USE_LEGACY_KERAS"]),
        ({}, {"PYTHONPATH": "/a", "LD_PRELOAD": "b"}, {"sys"}, ["LD_PRELOAD", "PYTHONPATH"]),
    ],
)
def test_what_counts_is_what_a_loaded_module_reads_at_its_import(here, there, loaded, names):
    assert forkserver.differs(here, there, loaded) == names
