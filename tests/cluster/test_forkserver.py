"""Workers forked from a process that has done their imports: as if each were a new Python."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import ray

from labkit.local.forkserver.server import differing_variables
from labkit.local.lab import Lab
from labkit.local.preload import Preloader
from labkit.local.variables import Changes
from labs import runs, until

pytestmark = pytest.mark.slow


TELL = """
import json, os, random, sys
descriptors = [name for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")]
about = {
    "argv": sys.argv, "path": sys.path[0], "name": __name__, "folder": os.getcwd(), "pid": os.getpid(),
    "parent": os.getppid(), "group": os.getpgrp(), "nice": os.nice(0), "random": random.random(),
    "word": os.environ.get("RAY_ADDRESS"), "loaded": "wave" in sys.modules, "input": sys.stdin.read(),
    "oom": int(open("/proc/self/oom_score_adj").read()),
    "files": [os.readlink(f"/proc/self/fd/{name}") for name in descriptors],
}
print(json.dumps(about), flush=True)
"""
SLEEP = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
JOB = "0a000000"


class Node:
    """A node without Ray: a process in place of its raylet, and the fork server that a cluster gives it.

    Attributes:
        pid: of the server.
    """

    def __init__(self, folder, early, modules=(), prepared=True):
        self._lab = Lab(folder)
        self._preloader = Preloader(self._lab, (early, modules, ()))
        self._log = self._lab.folder / "forkserver-head.log"
        environment = {**os.environ, "LABKIT_NODE": "head"}
        raylet = self._lab.start(["sleep", "600"], group="cluster", log=folder / "log", env=environment)
        self.raylet = raylet.pid
        if prepared:
            self._preloader.prepare("head", environment, Changes())
        self.socket = self._lab.folder / f"fork-{JOB}-{raylet.pid}"
        self.command = self._preloader.py_executable.split()

    @property
    def pid(self):
        return self._preloader._servers["head"][0].pid

    def serve(self, changes=Changes()):  # noqa: B008 - it can't be changed
        self._preloader.serve("head", psutil.Process(self.raylet), changes, job_id=JOB)
        return self

    def wait_for(self, text):
        until(lambda: text in self.log)
        return self

    @property
    def log(self):
        return self._log.read_text()

    def exit_codes(self):
        return self._preloader.exit_codes()

    def stop(self):
        self._preloader.stop()
        self._lab.stop()


@pytest.fixture(autouse=True)
def _only_our_variables(monkeypatch):
    for name in [name for name in os.environ if name.startswith("RAY_")]:  # other tests' own
        monkeypatch.delenv(name)


@pytest.fixture
def started():
    """Processes that are killed at the end of the test."""
    processes = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def start(started, tmp_path):
    """Starts a node, whose server imports these modules."""
    nodes = []

    def start(*modules, **more):
        nodes.append(Node(tmp_path, modules, **more))
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture
def server(start):
    """A server that has imported `wave`."""
    return start("wave", "no_such_module").serve().wait_for("ready")


@pytest.fixture
def run(started, tmp_path):
    """Runs a script as Ray runs a worker, by another program if there is one."""

    def run(node, code, *arguments, program=(), remove=None, **variables):
        script, folder = tmp_path / "script.py", remove or tmp_path
        script.write_text(code)

        def begin():
            os.nice(3)
            if remove is not None:
                os.rmdir(remove)

        of_node = psutil.Process(node.raylet).environ()
        environment = {**of_node, "RAY_JOB_ID": JOB, "RAY_RAYLET_PID": str(node.raylet), **variables}
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [*node.command, *program, str(script), *arguments], env=environment, cwd=folder, stdin=pipe,
            stdout=pipe, stderr=pipe, text=True, start_new_session=True, preexec_fn=begin,
        )  # fmt: skip
        started.append(process)
        return process

    return run


@pytest.fixture
def prepared(start, run, monkeypatch):
    """Lets Ray's own program prepare a worker; returns its node, and what it prints."""
    monkeypatch.setenv("TWO", "2")
    program = [str(Path(ray.__file__).parent / "_private" / "workers" / "setup_worker.py")]

    def prepared(**context):
        node = start("wave", modules=["ray"]).serve().wait_for("ready")
        context = {"py_executable": " ".join(node.command), **context}
        option = f"--serialized-runtime-env-context={json.dumps(context)}"
        return node, answer_of(run(node, TELL, "--one", option, "--language=PYTHON", program=program))

    return prepared


def answer_of(process):
    out, err = process.communicate("some input", timeout=200)
    assert process.returncode == 0 and out, err
    return json.loads(out)


# -- a worker -------------------------------------------------------------------------------------------


def test_a_forked_worker_is_as_a_new_python_with_the_imports_done(server, run, tmp_path):
    other = run(server, SLEEP)
    assert int(other.stdout.readline())
    answer = answer_of(run(server, TELL, "--one", "two words", RAY_ADDRESS="here"))
    assert answer["random"] != answer_of(run(server, TELL))["random"]
    assert stat.S_IMODE(server.socket.stat().st_mode) == 0o600  # only this user may ask
    assert answer["parent"] == server.pid and answer["loaded"]
    assert answer["argv"] == [str(tmp_path / "script.py"), "--one", "two words"]
    assert answer["name"] == "__main__" and answer["path"] == answer["folder"] == str(tmp_path)
    assert answer["word"] == "here" and answer["input"] == "some input"
    assert answer["group"] == answer["pid"]
    assert answer["nice"] == os.nice(0) + 3
    assert answer["oom"] == 1000  # Linux ends workers before the raylet
    # Its client's connection, and nothing of the other worker's. A new libffi keeps its own file open.
    others = [link for link in answer["files"] if not re.search("pipe|/libffi", link)]
    assert [link.partition(":")[0] for link in others] == ["socket"]
    assert server.log.count("could not import no_such_module") == 1


def test_a_worker_starts_although_the_folder_of_its_cluster_was_removed(server, run, tmp_path):
    (gone := tmp_path / "gone").mkdir()
    started = run(server, TELL, remove=gone)
    assert answer_of(started)["folder"] == "/"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_whoever_ends_the_client_ends_its_worker(server, run, number):
    process = run(server, SLEEP)
    worker = int(process.stdout.readline())
    assert worker != process.pid
    process.send_signal(number)
    until(lambda: not runs(worker))
    process.wait(90)
    assert answer_of(run(server, TELL))["parent"] == server.pid  # the server goes on


@pytest.mark.parametrize(
    "end, out, error",
    [
        ("", "atexit", ""),
        ("sys.exit('no such thing')", "atexit", "no such thing"),
        ("raise ValueError('wrong')", "atexit", "ValueError: wrong"),
        ("threading.Thread(target=lambda: (time.sleep(.2), print('thread'))).start()", "thread", ""),
        ("os.kill(os.getpid(), 9)", "", ""),
    ],
)
def test_a_forked_worker_ends_as_python_does(server, run, end, out, error):
    """What it printed comes out, its threads are waited for, and what is registered for the end is called."""
    code = (
        "import atexit, os, sys, threading, time\n"
        f"print(os.getppid(), flush=True); atexit.register(lambda: print('atexit', end=''))\n{end}"
    )
    process = run(server, code)
    output, complained = process.communicate(timeout=90)  # the client ends, too
    parent, _, rest = output.partition("\n")
    assert int(parent) == server.pid
    assert rest.startswith(out) and error in complained


THREADS = """
import ctypes, json, os, sys
import numpy
(path,) = {line.split()[-1] for line in open("/proc/self/maps") if "openblas" in line and "numpy" in line}
os.environ["OMP_NUM_THREADS"] = "2"  # as Ray does
library = ctypes.CDLL(path)
name = "scipy_openblas_get_num_threads"
count = getattr(library, f"{name}64_", None) or getattr(library, name)
threads = [count()]
os.environ["OMP_NUM_THREADS"] = "1"  # as a reader does, which has no effect on a library that was imported
threads.append(count())
print(json.dumps(threads), flush=True)
"""


def test_numpy_has_as_many_threads_as_ray_gives_the_worker(start, run, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert answer_of(run(start("numpy").serve(), THREADS)) == [2, 2]


def test_a_worker_has_the_threads_that_the_reader_has_set(start, run, monkeypatch):
    """With more than one, an import would start threads, and nothing could be forked."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    node = start("numpy", "torch").serve()
    count = "import json, os, torch; print(json.dumps([torch.get_num_threads(), os.getppid()]))"
    assert answer_of(run(node, count)) == [3, node.pid], node.log


def test_a_server_has_the_environment_of_its_raylet(start, run, monkeypatch):
    """What this process has changed since isn't there, unless the connection says so."""
    node = start("wave", prepared=False)
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    node.serve()
    assert answer_of(run(node, TELL))["parent"] == node.pid, node.log


@pytest.mark.parametrize(
    "end, code",
    [
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), 11)", -11),
        ("", 0),
    ],
)
def test_how_a_worker_ended_is_known_while_its_server_runs(server, run, end, code):
    process = run(server, f"import os, sys\nprint(os.getpid(), flush=True)\n{end}")
    pid = int(process.stdout.readline())
    until(lambda: pid in server.exit_codes())
    assert server.exit_codes()[pid] == code


def test_the_fork_that_prepares_a_worker_becomes_it(prepared, tmp_path):
    """It sets the variables as Ray does, and no second client asks for a second fork."""
    node, answer = prepared(env_vars={"RAY_ADDRESS": "${TWO}-here-${NOT_THERE}"})
    assert answer["parent"] == node.pid and answer["loaded"] and answer["word"] == "2-here-", node.log
    assert answer["argv"] == [str(tmp_path / "script.py"), "--one"] and answer["path"] == str(tmp_path)
    assert set(node.exit_codes()) <= {answer["pid"]} and "refused" not in node.log


@pytest.mark.parametrize(
    "context",
    [
        {"env_vars": {"PYTHONHASHSEED": "5"}},
        {"py_executable": sys.executable},
        {"command_prefix": ["true", ";"]},
    ],
    ids=["variable", "python", "prefix"],
)
def test_rays_program_runs_where_its_fork_cannot_be_the_worker(prepared, context):
    """A variable that counts at imports, another Python, or a command before it, as for a container."""
    node, answer = prepared(**context)
    assert answer["argv"][1:] == ["--one"]
    assert answer["loaded"] == ("command_prefix" in context), node.log
    until(node.exit_codes)


# -- each surprise leaves a new Python ------------------------------------------------------------------


@pytest.mark.parametrize(
    "variables",
    [
        {"RAY_RAYLET_PID": "2"},
        {"RAY_JOB_ID": "0b000000"},
        {"PYTHONHASHSEED": "5"},
        {"LONG": "x" * 100_000, "MORE": "y" * 130_000},
    ],
)
def test_what_cannot_be_served_alike_is_a_new_python(server, run, variables):
    """A node without a server; a job without one; a variable that Python reads; too long a message."""
    answer = answer_of(run(server, TELL, "--one", **{"RAY_ADDRESS": "there"} | variables))
    assert answer["parent"] == os.getpid() and not answer["loaded"], server.log
    assert answer["argv"][1:] == ["--one"] and answer["word"] == "there" and answer["input"] == "some input"
    if "PYTHONHASHSEED" in variables:
        assert "refused: it differs in PYTHONHASHSEED" in server.log


def test_a_server_that_dies_while_asked_leaves_a_new_python_and_its_workers(server, run):
    worker = int(run(server, SLEEP).stdout.readline())
    os.kill(server.pid, signal.SIGSTOP)
    process = run(server, TELL)
    asks = psutil.Process(process.pid)
    until(lambda: asks.status() == psutil.STATUS_SLEEPING and len(os.listdir(f"/proc/{asks.pid}/fd")) > 3)
    os.kill(server.pid, signal.SIGKILL)
    assert answer_of(process)["parent"] == os.getpid()
    assert answer_of(run(server, TELL))["parent"] == os.getpid()  # and afterwards, too
    assert runs(worker)


# 3.14 tells the system the names of threads.
NAME = "Thread-1" if sys.version_info >= (3, 14) else "python"
THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
GPU = "import os\nos.readlink = lambda path: '/dev/nvidiactl'  # as if it were open\n"


@pytest.mark.parametrize(
    "code, why",
    [(THREAD, f"these threads run: {NAME}"), (GPU, "an import has opened /dev/nvidiactl")],
    ids=["thread", "gpu"],
)
def test_nothing_is_forked_once_an_import_has_started_a_thread_or_opened_a_gpu(
    start, run, tmp_path, monkeypatch, code, why
):
    """A lock that the thread holds would stay held in the fork, and CUDA does not work there."""
    (tmp_path / "careless.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    node = start("careless").serve().wait_for("ready")
    assert answer_of(run(node, TELL))["parent"] == os.getpid()
    assert f"refused: {why}" in node.log


VARIABLES = [
    ({"RAY_JOB_ID": "1"}, {"RAY_JOB_ID": "2"}, "RAY_JOB_ID"),
    ({}, {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "1", "RAY_ADDRESS": "a"}, ""),
    ({}, {"RAY_TRAIN_V2_ENABLED": "0"}, "RAY_TRAIN_V2_ENABLED"),
    # Ray Tune sets it for each trial
    ({}, {"PL_DISABLE_FORK": "1"}, ""),
    ({"PWD": "/a", "_": "b"}, {"PWD": "/b", "SHLVL": "2"}, ""),
    # The lab once had a list of those that count, and it had holes.
    ({}, {"PYTORCH_JIT": "0", "KMP_AFFINITY": "none"}, "KMP_AFFINITY PYTORCH_JIT"),
]


@pytest.mark.parametrize("here, there, names", VARIABLES)
def test_a_variable_that_differs_counts_unless_it_is_read_later(here, there, names):
    assert differing_variables(here, there) == names.split()
