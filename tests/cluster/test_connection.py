"""Connecting to clusters that the lab did not start, with Ray's own ways to name a token, or without one."""

import json
import logging
import os
from types import SimpleNamespace

import pytest

from labkit.cluster import connection, current, peek
from labkit.cluster.connection import read_token
from labkit.cluster.handle import Cluster
from labkit.errors import NotReachable
from labkit.local import cluster
from labkit.local.lab import Lab
from labs import plain_head, python, until

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/cluster/"), pytest.mark.fault]
TOKEN = "e" * 64


def test_a_token_is_found_where_ray_looks_and_in_its_order(tmp_path, monkeypatch):
    """Kubernetes and Docker Compose pass it in a variable, which the lab once did not look at."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    assert read_token() is None
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("of the user\n")
    assert read_token() == "of the user"
    (tmp_path / "named").write_text("of a file\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "named"))
    assert read_token() == "of a file"
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of a variable")
    assert read_token() == "of a variable"


def test_a_machine_that_is_no_node_is_told_how_to_connect(monkeypatch):
    """Ray looks for a node's process here for a minute, and says nothing meanwhile."""
    names = ["python"]
    monkeypatch.setattr(
        "psutil.process_iter", lambda _: [SimpleNamespace(info={"name": name}) for name in names]
    )
    with pytest.raises(NotReachable) as caught:
        connection.check_node_here("10.0.0.7:6379")
    assert caught.value.fix.endswith("as a Ray client: ray://10.0.0.7:10001")
    for address in ("ray://10.0.0.7:10001", "auto"):
        connection.check_node_here(address)
    names.append("raylet")
    connection.check_node_here("10.0.0.7:6379")


CONNECT = """
import os, sys, warnings
from labkit.cluster import of_this_connection
from labkit.errors import LabError
from labkit.local import cluster
from labkit.__main__ import main
lab = cluster.connect(sys.argv[1], runtime_env={"env_vars": {"MINE": "a task ran"}})
import ray
print(ray.get(ray.remote(lambda: os.environ["MINE"]).remote()), len(lab.nodes), lab.is_running)
ray.shutdown()
print(cluster.connect(sys.argv[1]) is lab, ray.get(ray.remote(lambda: "and again").remote()))
with warnings.catch_warnings():
    warnings.simplefilter("error")  # such as to add a node, which the lab can't do there
    print("start", cluster.start(nodes=2) is lab)
print("capacity", lab.check_capacity(workers=64))
try:
    cluster.connect(sys.argv[1], runtime_env={"working_dir": "."})  # a connection has one for all its tasks
except LabError as error:
    print("refused", error.fact, error.fix)
lab.stop()
there = cluster.connect("localhost:" + sys.argv[1].rpartition(":")[2])
print("localhost", of_this_connection() is there)
there.stop()
print({name for name in os.environ if name.startswith("RAY_")} - {"RAY_CLIENT_MODE"})  # Ray's own
print("checked")
sys.exit(main(["check", sys.argv[1], "--json"]))
"""


@pytest.mark.parametrize(
    "token",
    [{"RAY_AUTH_TOKEN": TOKEN}, pytest.param({}, marks=pytest.mark.each_change)],
    ids=["token", "none"],
)
def test_a_cluster_of_a_plain_ray_start_is_used(home, tmp_path, token):
    """As in the containers of docs/clusters, and as on a cluster without authentication.

    There a token is not sent that another cluster has made: `ray.init()` makes one.
    """
    mode = "token" if token else "disabled"
    with plain_head(home / "plain", 2, HOME=str(tmp_path), RAY_AUTH_MODE=mode, **token) as address:
        (tmp_path / ".ray").mkdir(exist_ok=True)
        (tmp_path / ".ray" / "auth_token").write_text("f" * 64)
        done = python(CONNECT, address, HOME=str(tmp_path), LABKIT_HOME=str(home), **token)
    assert done.returncode == 0, done.stdout
    printed, _, checked = done.stdout.partition("checked\n")
    for part in (
        "start True",
        "a task ran 1 True",
        "True and again",
        "capacity None",
        "may add nodes",
        "refused this notebook is connected to it, with another runtime_env lab.stop() first",
        "localhost True",
    ):
        assert part in printed, printed
    assert str(set(token)) in printed.splitlines()[-1]
    findings = {finding["topic"]: finding for finding in json.loads(checked)["findings"]}
    assert findings["nodes"]["text"] == "1 of 1 answered a task", checked
    assert "as here" in findings["torch"]["text"] and "2 of 2 CPUs" in findings["room"]["text"]
    assert all(finding["ok"] for finding in findings.values())


OWN = """
import ray
from labkit.local import cluster
from labkit.errors import LabError
ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
kept = ray.put("kept")
for call in (cluster.start, lambda: cluster.connect("127.0.0.1:1")):
    try:
        call()
    except LabError as error:
        print("ray.shutdown()" in error.fix, error.fact)
left = cluster.Cluster("10.0.0.7:6379")  # whose head has died since ray.shutdown()
left._running, left._head_address = True, left.address
left.stop()
print(ray.get(kept), cluster.current())
"""


def test_a_session_of_the_readers_own_is_not_ended(home):
    done = python(OWN, RAY_TMPDIR=str(home))
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert sum(line.startswith("True this process has a Ray session") for line in lines) == 2, lines
    assert lines[-1] == "kept None" and Lab(home).groups() == set()


def test_ray_data_prints_again_once_the_cluster_is_left(monkeypatch):
    import ray.data

    for name in ("RAY_DATA_LOG_LEVEL", "RAY_DATA_DISABLE_PROGRESS_BARS"):
        monkeypatch.delenv(name, raising=False)
    context = ray.data.DataContext.get_current()
    (console,) = [handler for handler in logging.getLogger("ray.data").handlers if handler.name == "console"]
    for level in ("WARNING", "INFO"):  # the second one is the reader's own
        context.enable_progress_bars = True
        connection.set_environment(None, authenticate=None)
        assert (console.level, context.enable_progress_bars) == (getattr(logging, level), False)
        connection.disconnect(None)
        assert (console.level, context.enable_progress_bars) == (logging.INFO, True)
        monkeypatch.setenv("RAY_DATA_LOG_LEVEL", "INFO")


def test_a_head_on_another_machine_that_falls_silent_is_noticed(monkeypatch):
    """Ray would end the kernel a minute later."""
    from labkit.cluster import handle

    monkeypatch.setattr(handle, "_SILENT_FOR", 0.2)
    monkeypatch.setattr(handle, "_HEAD_EVERY", 0.05)
    lab = Cluster("127.0.0.1:1")
    lab._running = True
    lab._watch_head()
    assert not lab.is_running
    until(lambda: cluster.current() is None)


def test_a_relative_token_file_stays_the_same_after_a_change_of_folder(tmp_path, monkeypatch):
    """It was looked for again in the new folder, and after 45 s the kernel left its cluster."""
    (tmp_path / "data").mkdir()
    (tmp_path / "token").write_text("given")
    (tmp_path / "of-ray").write_text("of Ray")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "of-ray")
    monkeypatch.setattr(cluster.Cluster, "connect", lambda lab: None)
    monkeypatch.setattr("labkit.cluster._current", None)
    lab = cluster.connect("127.0.0.1:1", token_file="token")
    connection.set_environment(None, authenticate=None)
    try:
        monkeypatch.chdir(tmp_path / "data")
        assert connection.read_token(lab.token_file) == "given"
        assert connection.read_token() == "of Ray"
        assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / "of-ray")  # for Ray itself
    finally:
        connection.disconnect(None)
    assert os.environ["RAY_AUTH_TOKEN_PATH"] == "of-ray"


def test_to_ask_for_the_current_cluster_changes_nothing(monkeypatch):
    """It disconnected from one that had ended, which may take seconds."""
    lab = Cluster("127.0.0.1:1")
    lab._running = True
    disconnected = []
    monkeypatch.setattr(lab, "disconnect", lambda: disconnected.append(True))
    monkeypatch.setattr("labkit.cluster._current", lab)
    assert current() is lab
    lab._running = False
    assert current() is None and peek() is lab and not disconnected


def test_what_a_server_for_ray_clients_says_of_its_own_failure_is_told(home, monkeypatch):
    def fail(**_):
        raise ConnectionError(
            "Initialization failure from server:\nTraceback:\n  a frame\nRuntimeError: no room"
        )

    monkeypatch.setattr(connection, "check_reachable", lambda *_: False)
    monkeypatch.setattr("ray.init", fail)
    with pytest.raises(NotReachable, match=r"Initialization failure from server: … RuntimeError: no room"):
        connection.connect("ray://10.0.0.7:10001", token_file=None, runtime_env={})
