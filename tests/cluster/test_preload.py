"""Real Ray workers that begin with their imports done."""

import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest
import ray

from labkit import cluster
from labkit.cluster import preload
from labkit.errors import LabError
from labkit.system import family
from labkit.system import overview as inventory
from labs import python, runs

pytestmark = pytest.mark.fault


@ray.remote
class Worker:
    """What a process was before it did anything."""

    def about(self):
        torch = sys.modules.get("torch")
        return {
            "parent": os.getppid(),
            "pid": os.getpid(),
            "loaded": torch is not None,
            "threads": torch.get_num_threads() if torch else None,
        }


def servers(home):
    members = family.running(home, "cluster")
    return {one.node: one.pid for one in members if one.is_origin and one.program == "forkserver"}


def about(**options):
    worker = Worker.options(**options).remote()
    try:
        return ray.get(worker.about.remote(), timeout=90)
    finally:
        ray.kill(worker)


def test_each_node_has_a_server_that_forks_its_workers(home, lab):
    found = servers(home)
    assert set(found) == {"head", "node-2"}
    for name in found:
        (node,) = (node for node in lab.nodes if node.name == name)
        told = about(num_cpus=1, label_selector={"ray.io/node-id": node.id})
        said = (lab._launcher.folder / f"forkserver-{name}.log").read_text()
        assert told["parent"] == found[name] and told["loaded"], said


def test_workers_draw_ids_of_their_own(lab):
    """In threads, too: Ray names a task after the thread that submits it."""

    @ray.remote(num_cpus=0)
    class Drawer:
        def ids(self):
            found = [ray.ObjectRef.from_random().hex()]
            for _ in range(2):
                thread = threading.Thread(target=lambda: found.append(ray.ObjectRef.from_random().hex()))
                thread.start()
                thread.join()
            return found

    actors = [Drawer.remote() for _ in range(4)]
    found = [one for ids in ray.get([actor.ids.remote() for actor in actors], timeout=90) for one in ids]
    assert len(set(found)) == len(found) == 12
    for actor in actors:
        ray.kill(actor)


def test_torch_has_as_many_threads_as_the_worker_has_cpus(lab):
    assert [about(num_cpus=cpus)["threads"] for cpus in (1, 2)] == [1, 2]


def test_a_variable_for_one_task_takes_a_new_python_and_the_card_says_so(lab):
    """A library may read it at its import."""

    def task():
        return os.environ.get("WORD"), "torch" in sys.modules

    assert ray.get(ray.remote(task).remote(), timeout=90) == (None, True)
    assert "new Pythons" not in lab._repr_html_()
    other = ray.remote(task).options(runtime_env={"env_vars": {"WORD": "here"}})
    assert ray.get(other.remote(), timeout=90) == ("here", False)
    assert "as new Pythons (refused: it differs in WORD)" in lab._repr_html_()


def test_rays_own_tools_ask_this_cluster_in_a_worker(lab, tmp_path):
    """And not the one that another user started last on this machine, and that may be dead by now."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:9")

    @ray.remote(runtime_env={"env_vars": {"RAY_TMPDIR": str(tmp_path)}})
    def task():
        from ray.util import state

        return {node.node_name for node in state.list_nodes(timeout=20)}

    assert ray.get(task.remote(), timeout=90) == {"head", "node-2"}


def test_a_worker_counts_once_and_on_its_node(home, lab):
    workers = [Worker.remote() for _ in range(2)]
    ray.get([worker.about.remote() for worker in workers], timeout=90)
    rows = {(row[0], row[1]): row for row in inventory.processes().rows}
    assert ("head", "forkserver") in rows and rows["head", "forkserver"][2] == 1
    pids = {told["pid"] for told in ray.get([worker.about.remote() for worker in workers])}
    counted = sum(row[2] for (_, name), row in rows.items() if name == "worker")
    children = [psutil.Process(pid).children() for pid in servers(home).values()]
    assert pids <= {child.pid for group in children for child in group}
    assert counted < 2 * sum(map(len, children)) + 4  # not each of them and its client, too
    for worker in workers:
        ray.kill(worker)


def test_a_server_that_was_killed_costs_time_and_nothing_else(home, lab):
    for pid in servers(home).values():
        os.kill(pid, signal.SIGKILL)
    told = about(num_cpus=1)
    assert not told["loaded"]
    # Another notebook finds the cluster, and does not take it for a broken one.
    other = python("from labkit import cluster; lab = cluster.start(); print(lab.address); lab.stop()")
    assert other.stdout.splitlines()[0] == lab.address, other.stdout
    assert len(lab.nodes) == 2


def test_a_new_connection_gets_new_servers(home, lab):
    ray.shutdown()
    assert cluster.start() is lab
    assert set(servers(home)) == {"head", "node-2"}
    assert about(num_cpus=1)["loaded"]


def test_a_node_that_is_lost_takes_its_server_along(home, lab):
    server = servers(home)["node-2"]
    lab.remove_node("node-2")
    assert not runs(server)
    assert set(servers(home)) == {"head"}
    node = lab.add_node(cpus=2)
    assert set(servers(home)) == {"head", node.name}


def test_what_prepares_a_worker_is_forked_as_well(home, lab):
    """Ray starts a Python for it, which imports all of ray before it becomes the worker."""
    worker = Worker.remote()
    pid = ray.get(worker.about.remote(), timeout=90)["pid"]
    server = psutil.Process(pid).parent()
    assert server.pid in servers(home).values()
    clients = [p for p in server.children() if any("forkserver/client.py" in part for part in p.cmdline())]
    assert clients, [p.cmdline() for p in server.children()]
    ray.kill(worker)


def test_the_launcher_is_python_for_all_else_and_is_left_out_where_no_program_may_run(tmp_path, monkeypatch):
    preloader = preload.Preloader(tmp_path, tmp_path, ["ray"])
    launcher = preloader.make_launcher()
    assert launcher.parent == tmp_path and launcher.stat().st_mode & 0o777 == 0o700
    code = "import sys; print(sys.executable, sys.argv[1:])"
    said = subprocess.run([launcher, "-c", code, "two words", "$HOME"], capture_output=True, text=True)
    assert said.stdout.strip() == f"{sys.executable} ['two words', '$HOME']"

    def refuse(*_, **__):
        raise PermissionError("noexec")

    monkeypatch.setattr(preload.subprocess, "run", refuse)
    assert preloader.make_launcher() is None


WITHOUT = """
import ray
from labkit import cluster
lab = cluster.start()
print(ray.get(ray.remote(lambda: __import__("sys").argv[0]).remote()), lab._launcher.preloader)
ray.shutdown()
"""


def test_it_can_be_switched_off(lab):
    """As Ray does it by itself, in the same cluster."""
    told = python(WITHOUT, LABKIT_PRELOAD="0").stdout.splitlines()[-2:]
    assert any(line.endswith("default_worker.py None") for line in told), told


def test_only_modules_that_nobody_edits_are_imported_ahead():
    """After an edit, forked workers would have the old code, and workers on a cluster the new one."""
    assert preload.modules_of([]) is None
    for wrong in ("torhc", 7, ["my_model"]):
        with pytest.raises(LabError, match="is not known"):
            preload.modules_of(wrong)


def test_what_a_fork_takes_over_is_one_thread():
    """A lock that another thread held at the fork would be held forever. jemalloc takes care of its own."""
    code = (
        "import importlib, os, sys\n"
        "[importlib.import_module(name) for name in sys.argv[1:]]\n"
        "for task in os.listdir('/proc/self/task'):\n"
        "    print('thread', open(f'/proc/self/task/{task}/comm').read().strip())"
    )
    modules = sum(preload.MODULES["tensorflow"], ())  # `lab` preloads torch's
    imported = python(code, *modules, OMP_NUM_THREADS="1")
    assert imported.returncode == 0, imported.stdout
    threads = [line for line in imported.stdout.splitlines() if line.startswith("thread ")]
    assert set(threads) <= {"thread python", "thread jemalloc_bg_thd"}, threads
