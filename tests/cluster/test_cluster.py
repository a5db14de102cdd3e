"""A cluster of real `ray start` nodes: started, grown, shrunk, joined, broken and stopped."""

import contextlib
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import grpc
import psutil
import pytest
import ray
import requests
from filelock import FileLock

import labs
from labkit import __version__, process_info
from labkit.cluster.connection import check_reachable, read_token
from labkit.errors import BadInput, LabError, NoRoom, NotReachable, RunStopped
from labkit.local import cluster, nodes
from labkit.local.lab import Lab
from labkit.machine import free_port
from labkit.settings import Settings
from labs import begin, interrupt_when, python, runs, until

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/cluster/"), pytest.mark.fault]


@pytest.fixture(scope="module")
def home(home):
    # A head looks for its nodes every 3 s and gives each five chances; this test should not wait for that.
    os.environ.update(RAY_health_check_period_ms="300", RAY_health_check_initial_delay_ms="300")
    return home


def members(home):
    return [member.process for member in Lab(home).running("cluster")]


def roles(home):
    return sorted(member.role for member in Lab(home).running("cluster") if member.is_origin)


@ray.remote
def where():
    return ray.get_runtime_context().get_node_id()


def in_place_of_ray(monkeypatch, code):
    """Let nodes be started by this program."""
    monkeypatch.setattr(nodes.LocalCluster, "_ray", lambda *_: [sys.executable, "-c", code])


# -- before anything runs -------------------------------------------------------------------------------


def test_an_interrupted_start_leaves_nothing(home):
    code = "from labkit.local import cluster; print('go', flush=True); cluster.start()"
    process = begin(code, stderr=subprocess.PIPE)
    try:
        process.stdout.readline()
        until(lambda: "raylet" in map(process_info.program_name, members(home)))
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=300)[1]
    finally:
        process.kill()
    assert process.returncode != 0
    assert errors.splitlines()[-1].endswith("stopped by you. Nothing of it is left running"), errors
    assert "Exception ignored" not in errors
    assert Lab(home).groups() == set()


def test_a_start_that_waits_for_another_one_in_vain_says_so(home, monkeypatch):
    settings = Settings.from_env()
    settings.make_home()
    monkeypatch.setattr(nodes, "START_TIMEOUT", 0.1)
    starting = FileLock(Lab(settings.home).make_folder() / "starting")
    with starting, pytest.raises(LabError, match="another process has been starting it"):
        cluster.start()


@pytest.mark.parametrize(
    "prints, fact",
    [
        ("'no Ray here'", "`ray start` failed: no Ray here"),
        ("'Failed to start the dashboard, return code 1\\na line of its log'", "its dashboard did not start"),
        ("print('Ray runtime started.')", "`ray start` did not print its address"),
        # Ray's own limit is 60 s. On a busy machine that is too short, and what it prints then is no help.
        ("os.environ['RAY_DASHBOARD_STARTUP_TIMEOUT_S']", f"`ray start` failed: {nodes.START_TIMEOUT}"),
    ],
)
def test_a_head_that_does_not_start_says_why_and_leaves_nothing(home, monkeypatch, prints, fact):
    in_place_of_ray(monkeypatch, f"import os; raise SystemExit({prints})")
    with pytest.raises(NotReachable, match="start head") as refused:
        cluster.start()
    assert "start-head.log" in refused.value.fix and refused.value.fact == fact
    assert Lab(home).groups() == set() and cluster.current() is None


NO_DASHBOARD = """
import os, sys, time
option = next(argument for argument in sys.argv if argument.startswith("--temp-dir="))
folder = option.partition("=")[2] + "/session_latest/logs"
os.makedirs(folder, exist_ok=True)
with open(f"{folder}/dashboard.err", "w") as log:
    log.write("Traceback\\nOSError: AF_UNIX path too long\\n")
END
"""


@pytest.mark.parametrize("end", ["time.sleep(600)", "sys.exit('Failed to start the dashboard')"])
def test_a_dashboard_that_does_not_start_says_why(home, monkeypatch, end):
    """It was 180 s without a word, and then an error without the reason."""
    in_place_of_ray(monkeypatch, NO_DASHBOARD.replace("END", end))
    monkeypatch.setattr(nodes, "_SLOW_AFTER", 3)
    monkeypatch.setattr(nodes, "START_TIMEOUT", 6)
    said = contextlib.nullcontext()
    if "sleep" in end:
        said = pytest.warns(UserWarning, match="takes more than 3 s.*AF_UNIX path too long")
    # In a home of its own no session is there yet.
    with labs.home(), said, pytest.raises(NotReachable) as refused:
        cluster.start()
    assert "its dashboard says: OSError: AF_UNIX path too long" in refused.value.fact


def test_two_processes_that_start_at_once_get_one_cluster(home):
    code = "import time; from labkit.local import cluster; lab = cluster.start(); "
    code += "print('address', lab.address, flush=True); time.sleep(900)"
    both = [begin(code), begin(code)]
    try:
        addresses = {_address_of(process) for process in both}
        assert len(addresses) == 1
        assert set(Lab(home).users()["cluster"]) == {process.pid for process in both}
        both[0].kill()
        both[0].wait()
        until(lambda: Lab(home).users()["cluster"] == [both[1].pid])
    finally:
        for process in both:
            process.kill()
            process.communicate()
        Lab(home).stop()


def _address_of(process):
    return next(line for line in process.stdout if line.startswith("address"))


# -- while it runs --------------------------------------------------------------------------------------


@pytest.mark.each_change
def test_it_has_the_nodes_that_were_asked_for(lab):
    assert [(node.name, node.cpus, node.alive) for node in lab.nodes] == [
        ("head", 2, True),
        ("node-2", 2, True),
    ]
    assert (lab.cpus, lab.is_ours) == (4, True)
    shown = lab._repr_html_()
    assert lab.dashboard_url in shown and "node-2" in shown and "started by the lab" in shown
    assert lab.log_dir.is_dir()


@pytest.mark.each_change
def test_a_second_start_returns_the_first_and_says_if_more_was_asked_for(lab, recwarn):
    assert cluster.start() is lab
    assert cluster.start(nodes=2, cpus_per_node=2) is lab
    assert not recwarn
    with pytest.warns(UserWarning, match=r"2 nodes, 4 CPUs runs already.*lab.stop"):
        assert cluster.start(nodes=3) is lab
    with pytest.warns(UserWarning, match="runs already and is used"):
        assert cluster.start(cpus_per_node=7) is lab


def test_a_script_that_ends_leaves_the_cluster_to_the_others(lab):
    done = python("from labkit.local import cluster; lab = cluster.start(); print(lab.address); lab.stop()")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines() == [
        lab.address,
        "another notebook still uses the cluster (python -m labkit stop ends it)",
    ]
    assert ray.get(where.remote()) in [node.id for node in lab.nodes]


@pytest.mark.each_change
def test_a_node_is_added_used_and_removed(lab):
    node = lab.add_node(cpus=1, resources={"fast_disk": 1})
    assert (node.name, node.cpus, node.resources["fast_disk"]) == ("node-3", 1, 1)
    assert ray.get(where.options(resources={"fast_disk": 1}).remote()) == node.id
    lab.remove_node(node)
    assert [node.name for node in lab.nodes] == ["head", "node-2"]
    assert "✕ lost" in lab._repr_html_()
    for wrong, said in ((3, "no such node"), ("head", "it is the head"), (node, "no such node")):
        with pytest.raises(BadInput, match=said) as refused:
            lab.remove_node(wrong)
        assert "node-2" in refused.value.fix
    with pytest.raises(BadInput, match="cpus='1' is not"):
        lab.add_node(cpus="1")
    assert len(lab.nodes) == 2


ONE_PORT_TWICE = "please make sure the same port is not used by multiple components."


@pytest.mark.parametrize("why", [nodes._TOO_BUSY, ONE_PORT_TWICE], ids=["slow", "port"])
def test_a_node_that_was_too_slow_or_had_one_port_twice_is_started_again(lab, tmp_path, monkeypatch, why):
    marked = tmp_path / "first"  # on a busy machine Ray may give up on the second one as well
    ray_itself = lab._ray("node-3")
    fails = f"""
import os, pathlib, sys
if not pathlib.Path({str(marked)!r}).exists():
    pathlib.Path({str(marked)!r}).touch()
    sys.exit("node {why}")
command = {ray_itself} + sys.argv[1:]
os.execv(command[0], command)
"""
    in_place_of_ray(monkeypatch, fails)
    added = lab.add_node(cpus=1)
    assert marked.exists() and added in lab.nodes
    lab.remove_node(added)


@pytest.mark.each_change
def test_a_node_that_dies_is_seen_and_its_place_can_be_filled(lab, home):
    node = lab.add_node(cpus=1)
    raylet = next(
        member for member in Lab(home).running("cluster", node.name) if member.role.endswith(": raylet")
    )
    os.kill(raylet.origin.pid, signal.SIGKILL)
    until(lambda: node.name not in [n.name for n in lab.nodes])
    assert ray.get(where.remote()) in [n.id for n in lab.nodes]
    again = lab.add_node(cpus=1)
    assert again.name not in ("head", "node-2", node.name)
    lab.remove_node(again.name)


def test_an_interrupted_new_node_is_gone_again(lab, home):
    before = roles(home)
    interrupt_when(lambda: len(roles(home)) > len(before))
    with pytest.raises(RunStopped, match="the start of node-"):
        lab.add_node(cpus=1)
    assert roles(home) == before
    until(lambda: len(lab.nodes) == 2)


@pytest.mark.each_change
def test_a_training_that_has_no_room_is_refused(lab):
    lab.check_capacity(workers=4)
    with pytest.raises(NoRoom, match="room for 4 of them"):
        lab.check_capacity(workers=5)


# -- another process ------------------------------------------------------------------------------------


def test_who_gets_no_answer_does_not_stop_what_another_one_uses(lab):
    code = """
from labkit.local import cluster
from labkit.cluster import connection
from labkit.errors import NotReachable

def connect(*_, **__):
    raise NotReachable("connect", "it is too busy", "wait")

connection.connect = connect
cluster.start()
"""
    done = python(code)
    assert done.returncode and "it is too busy" in done.stdout
    assert lab.is_running and lab.nodes[0].name == "head"


UNANSWERED = """
import sys
from pathlib import Path
from labkit.errors import NotReachable
from labkit.local import nodes
from labkit.local.lab import Lab
from labkit.settings import Settings

def connect(_):
    raise NotReachable("connect", "nothing answers there", "wait")

nodes.LocalCluster._has_head = lambda _: True
nodes.LocalCluster.connect = connect
home = Path(sys.argv[1])
Lab(home).start(["sleep", "900"], group=nodes.GROUP, log=home / "log")
Lab(home).note(nodes.GROUP, {"address": "127.0.0.1:1", "dashboard": ""})
print("found", nodes.LocalCluster(Settings(home=home), None).find(), Lab(home).groups())
"""


def test_a_cluster_that_does_not_answer_and_that_nobody_uses_is_replaced(tmp_path):
    done = python(UNANSWERED, tmp_path)  # in a process of its own: this one is connected to another cluster
    Lab(tmp_path).stop()
    assert done.stdout.splitlines()[-1] == "found False set()", done.stdout


ELSEWHERE = UNANSWERED.replace("127.0.0.1:1", "203.0.113.9:1").replace("raise NotReachable", "1 / 0  #")


def test_a_cluster_whose_address_this_machine_has_lost_is_replaced(tmp_path):
    """A laptop in another network: Ray's processes run, and have lost each other."""
    done = python(ELSEWHERE, tmp_path)
    Lab(tmp_path).stop()
    assert done.stdout.splitlines()[-1] == "found False set()", done.stdout
    lost = nodes.LocalCluster(Settings(home=tmp_path), None)
    lost.address = "203.0.113.9:1"
    assert not lost._answers()
    lost.address = "127.0.0.1:1"
    assert lost._answers()


CONNECT = """
import json, sys
from labkit.local import cluster
from labkit.errors import LabError
address, token = sys.argv[1:]
try:
    lab = cluster.connect(address, token_file=token or None)
except LabError as error:
    print(error)
else:
    import ray
    @ray.remote
    def version():
        import labkit
        return labkit.__version__
    print("connected", lab.is_ours, len(lab.nodes), ray.get(version.remote()))
    try:
        lab.add_node()
    except LabError as error:
        print(error)
    lab.stop()
    print(repr(lab))
"""


def test_who_connects_uses_the_cluster_and_never_stops_it(lab, home):
    done = python(CONNECT, lab.address, home / "ray-token", LABKIT_HOME=str(home / "other"))
    assert f"connected False 2 {__version__}" in done.stdout, done.stdout
    assert "the lab did not start the cluster at" in done.stdout and "stopped)" in done.stdout
    assert len(lab.nodes) == 2


@pytest.mark.each_change
def test_a_wrong_token_or_none_is_refused(lab, home, tmp_path, monkeypatch):
    (tmp_path / "token").write_text("f" * 64)
    done = python(CONNECT, lab.address, tmp_path / "token", LABKIT_HOME=str(tmp_path))
    assert "refused the token" in done.stdout and "Traceback" not in done.stdout, done.stdout
    assert "f" * 64 not in done.stdout
    with pytest.raises(NotReachable, match="refused the token: none was found"):
        check_reachable(lab.address, None)
    monkeypatch.setattr("labkit._ray.HEAD_CALL", "/ray.rpc.NodeInfoGcsService/CheckAliveOfTomorrow")
    check_reachable(
        lab.address, read_token(home / "ray-token")
    )  # another Ray may have renamed it: Ray itself has to try


# -- who may come in ------------------------------------------------------------------------------------

# One call of each gRPC service of Ray. Arguments do not matter: who has no token is not asked for them.
CALLS = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.InternalKVGcsService/InternalKVKeys",
    "/ray.rpc.JobInfoGcsService/GetAllJobInfo",
    "/ray.rpc.NodeManagerService/GetSystemConfig",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "/ray.rpc.ObjectManagerService/Pull",
    "/ray.rpc.ReporterService/GetTraceback",
    "/ray.rpc.RayletDriver/ClusterInfo",
)
REFUSED = {"UNAUTHENTICATED", "UNIMPLEMENTED"}


def http_status(host, port, path, *, method="GET", body=None):
    """The status of an HTTP request; None from a server that speaks something else."""
    with contextlib.suppress(requests.RequestException):
        return requests.request(method, f"http://{host}:{port}{path}", data=body, timeout=60).status_code
    return None


def grpc_answers(host, port):
    answers = set()
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        for call in CALLS:
            try:
                channel.unary_unary(call)(b"", timeout=60)
                answers.add(call)
            except grpc.RpcError as error:
                answers.add(error.code().name)
    return answers


def sockets(home):
    """(program, address, port) of each socket that a process of the lab listens on."""
    for process in members(home):
        with contextlib.suppress(psutil.NoSuchProcess):  # Ray ends workers that wait for long
            for connection in process.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    name, address = process_info.program_name(process), connection.laddr.ip
                    yield name, address.replace("::ffff:", ""), connection.laddr.port


def test_every_socket_refuses_who_has_no_token(lab, home):
    ray.get(where.remote())  # a worker has one, too
    kinds = set()
    listed = list(sockets(home))
    for program, address, port in listed:
        host = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}.get(address, address)
        status = http_status(host, port, "/metrics")
        if status is None:
            answers = grpc_answers(host, port)
            if (program, address, port) not in set(sockets(home)):
                continue  # of a worker that Ray has ended meanwhile
            assert answers <= REFUSED and "UNAUTHENTICATED" in answers, (program, address, port, answers)
            kinds.add("gRPC")
        else:
            # Ray's dashboard, on loopback; its agents, which Ray puts on the node's address.
            assert status == 401, (program, address, port, status)
            assert http_status(host, port, "/api/jobs/", method="POST", body=b"{}") == 401
            assert address == "127.0.0.1" or program.endswith("Agent"), (program, address)
            kinds.add(program)
    assert {"gRPC", "dashboard"} <= kinds


INTRUDER = """
import os, sys
address, trace = sys.argv[1:]
import ray
try:
    ray.init(address, logging_level="CRITICAL", log_to_driver=False)
    ray.get(ray.remote(lambda: open(trace, "w").close()).remote())
    print("came in")
except BaseException as error:
    print("refused", type(error).__name__)
os._exit(0)
"""


def test_the_cluster_runs_no_strangers_code_and_has_no_server_for_ray_clients(lab, home, tmp_path):
    assert "ray.util.client" not in {name for name, *_ in sockets(home)}
    trace = tmp_path / "trace"
    strange = {"RAY_AUTH_TOKEN_PATH": "", "RAY_AUTH_TOKEN": "0" * 64, "HOME": str(tmp_path)}
    hasty = {"RAY_gcs_rpc_server_reconnect_timeout_s": "3"}  # it would try again for half a minute

    for mode in ("token", "disabled"):
        output = python(INTRUDER, lab.address, trace, RAY_AUTH_MODE=mode, **strange, **hasty).stdout
        assert "came in" not in output and "refused" in output, (mode, output)
    assert not trace.exists()


def test_the_token_is_for_its_owner_alone_and_stands_nowhere_else(lab, home):
    path = lab.token_file
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((home / "ray").stat().st_mode) == 0o700
    token = path.read_text()
    assert token not in repr(lab) + lab._repr_html_() + repr(lab.__dict__)
    for process in members(home):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            assert token not in " ".join(process.cmdline()) + str(process.environ())
    for file in home.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
            if file.is_file() and file != path:
                assert token.encode() not in file.read_bytes(), file


def test_a_folder_that_others_may_enter_is_not_used():
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "ray").mkdir(mode=0o755)
        with pytest.raises(BadInput, match="other users may enter it"):
            Lab(Path(home)).make_folder()


def test_a_link_in_tmp_is_not_followed(tmp_path):
    """Another user who guesses the folder's name could lead Ray's files to another folder of the user's."""
    home, private = tmp_path / "müller", tmp_path / "private"
    private.mkdir(mode=0o700)
    folder = Lab(home).make_folder().parent
    shutil.rmtree(folder)
    for target in (private, tmp_path / "nowhere"):
        folder.symlink_to(target)
        try:
            with pytest.raises(BadInput, match="other users may enter it"):
                Lab(home).make_folder()
        finally:
            folder.unlink()
    assert not list(private.iterdir()) and not (tmp_path / "nowhere").exists()


def test_a_home_whose_path_is_not_ascii_has_its_sockets_elsewhere(tmp_path, monkeypatch):
    """Ray's core encodes the path as ASCII. A deep TMPDIR, as on many clusters, is no place either."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("t" * 60)))
    for home in (tmp_path / "müller", tmp_path / ("x" * 90)):
        folder = Lab(home).make_folder()
        try:
            assert folder.parent.parent == Path("/tmp") and str(folder).isascii()
            assert len(f"{folder}/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store.1") < 104
        finally:
            shutil.rmtree(folder.parent)


# -- afterwards -----------------------------------------------------------------------------------------


def test_it_runs_on_without_what_it_can_do_without(lab, home):
    [monitor] = [member for member in Lab(home).running("cluster") if member.role == "head: monitor"]
    os.kill(monitor.pid, signal.SIGKILL)
    until(lambda: not runs(monitor.pid))
    assert lab.is_running and cluster.current() is lab and ray.get(ray.remote(lambda: 1).remote()) == 1


@pytest.mark.each_change
def test_after_stop_nothing_is_left_and_the_handle_says_so(lab, home, monkeypatch):
    assert len(members(home)) > 5
    release = lab._leave
    interrupted = [lambda: os.kill(os.getpid(), signal.SIGINT), release]  # when it has disconnected
    monkeypatch.setattr(lab, "_leave", lambda: [do() for do in interrupted])
    with pytest.raises(RunStopped, match=r"lab.stop\(\): stopped by you. The cluster has been stopped all"):
        lab.stop()
    assert Lab(home).groups() == set()
    assert cluster.current() is None
    assert repr(lab).endswith("stopped)") and "stopped" in lab._repr_html_()
    with pytest.raises(LabError, match=r"lab = cluster.start\(\)"):
        lab.add_node()
    lab.stop()  # a second time is no fault


def test_a_taken_port_is_replaced_the_environment_is_put_back_and_the_right_token_is_sent(home, monkeypatch):
    """Ray starts a head whose dashboard found its port taken, and says so in a log. And after a start and a
    stop, connect() took the lab's own token for the user's.
    """
    if (running := cluster.current()) is not None:
        running.stop()
    monkeypatch.setenv("RAY_enable_metrics_collection", "1")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "f" * 64)  # as in a container, whose own cluster has this token
    before = dict(os.environ)
    with socket.create_server(("127.0.0.1", 0)) as server:
        ports = iter([free_port(), server.getsockname()[1]])
        monkeypatch.setattr(nodes, "free_port", lambda: next(ports, None) or free_port())
        with cluster.start() as lab:
            assert requests.get(f"{lab.dashboard_url}/api/v0/nodes", timeout=300).status_code == 401
            assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(home / "ray-token")
            assert "RAY_AUTH_TOKEN" not in os.environ
            (raylet,) = (process for process in members(home) if process.name() == "raylet")
            assert raylet.environ()["RAY_enable_metrics_collection"] == "1"  # what the reader has set counts
            os.environ["LABKIT_OF_THE_READER"] = "1"
    assert next(ports, None) is None  # the port that was taken was tried
    del os.environ["LABKIT_OF_THE_READER"]
    os.environ.pop("RAY_CLIENT_MODE", None)  # Ray's own
    assert dict(os.environ) == before


STOPPED = """
import subprocess, sys, time
import ray
from labkit.local import cluster

def stop():
    subprocess.run([sys.executable, "-m", "labkit", "stop"], check=True, stdout=subprocess.DEVNULL)

lab = cluster.start()
stop()
print(repr(lab))
print("stopped" in lab._repr_html_())
for call in (lambda: lab.nodes, lab.add_node, lambda: lab.check_capacity(workers=1)):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, "fix: lab = cluster.start()" in str(error))
again = cluster.start()  # at once
print(again is lab, len(again.nodes))
stop()
deadline = time.monotonic() + 50
while ray.is_initialized() and time.monotonic() < deadline:
    time.sleep(0.2)
assert not ray.is_initialized()  # it has noticed by itself
cluster.start().stop()
"""


def test_a_process_whose_cluster_was_stopped_in_a_terminal_goes_on(home):
    """Ray waits for 60 s for a head that is gone, and then ends the process."""
    done = python(STOPPED)
    # Ray's own lines on a head that is gone may come between.
    lines = [line for line in done.stdout.splitlines() if re.match("Cluster|LabError|True|False", line)]
    assert done.returncode == 0 and "rpc_client" not in done.stdout, done.stdout
    assert lines[0].startswith("Cluster(") and lines[1] == "True"
    assert lines[2:5] == ["LabError True"] * 3
    assert lines[-1] == "False 1"
