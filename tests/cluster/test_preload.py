"""Real Ray workers that begin with their imports done."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import ray

from labkit.local import cluster, preload
from labkit.local.lab import Lab
from labs import idle, python, runs, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("labkit/local/forkserver/", "labkit/cluster/"),
    pytest.mark.fault,
]


@ray.remote
class Worker:
    """What a process was before it did anything."""

    def about(self):
        torch = sys.modules.get("torch")
        threads = torch.get_num_threads() if torch else None
        seed = torch.initial_seed() if torch else None
        found = {"parent": os.getppid(), "pid": os.getpid(), "loaded": torch is not None}
        found["shorter"] = "labkit.local.forkserver.shorter_start" in sys.modules
        found["frozen"] = gc.get_freeze_count()
        return {**found, "threads": threads, "seed": seed}

    def ids(self):
        """In threads, too: Ray names a task after the thread that submits it."""
        drawn = [ray.ObjectRef.from_random().hex()]
        for _ in range(2):
            thread = threading.Thread(target=lambda: drawn.append(ray.ObjectRef.from_random().hex()))
            thread.start()
            thread.join()
        return drawn


def servers(home):
    members = Lab(home).running("cluster")
    return {
        member.node: member.pid for member in members if member.is_origin and member.program == "forkserver"
    }


def about(**options):
    worker = Worker.options(**options).remote()
    try:
        return ray.get(worker.about.remote(), timeout=300)
    finally:
        ray.kill(worker)


def clients_of(server):
    clients = []
    for process in server.children():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if any("forkserver/client.py" in part for part in process.cmdline()):
                clients.append(process)
    return clients


def test_each_node_has_a_server_that_forks_its_workers_with_what_prepares_them(home, lab):
    pids = servers(home)
    assert set(pids) == {"head", "node-2"}
    for name in pids:
        (node,) = (node for node in lab.nodes if node.name == name)
        worker = Worker.options(label_selector={"ray.io/node-id": node.id}).remote()
        process = ray.get(worker.about.remote(), timeout=300)
        log = (lab.folder / f"forkserver-{name}.log").read_text()
        assert process["parent"] == pids[name] and process["loaded"], log
        assert process["frozen"] > 100_000  # a full collection would copy all pages of the server
        # Ray starts a Python for each, which imports all of ray before it becomes the worker. That is the
        # same fork: there is no second client, which would be a child of the server.
        assert not clients_of(psutil.Process(pids[name])), log
        ray.kill(worker)


def test_workers_draw_ids_and_seeds_of_their_own_and_have_their_cpus_as_threads(home, lab):
    until(lambda: about(num_cpus=0)["shorter"])  # Ray's modules with actor classes draw ids at their import
    actors = [Worker.options(num_cpus=0).remote() for _ in range(4)]
    drawn = [id for ids in ray.get([actor.ids.remote() for actor in actors], timeout=300) for id in ids]
    assert len(set(drawn)) == len(drawn) == 12
    for actor in actors:
        ray.kill(actor)
    processes = [about(num_cpus=cpus) for cpus in (1, 2)]
    assert [id["threads"] for id in processes] == [1, 2]
    assert processes[0]["seed"] != processes[1]["seed"]  # of torch, as in new processes


def test_a_variable_for_one_task_takes_a_new_python_and_the_card_says_so(lab):
    """A library may read it at its import."""

    def task():
        return os.environ.get("WORD"), "torch" in sys.modules

    assert ray.get(ray.remote(task).remote(), timeout=300) == (None, True)
    assert "new Pythons" not in lab._repr_html_()
    other = ray.remote(task).options(runtime_env={"env_vars": {"WORD": "here"}})
    assert ray.get(other.remote(), timeout=300) == ("here", False)
    assert "as new Pythons (refused: it differs in WORD)" in lab._repr_html_()


def test_rays_own_tools_ask_this_cluster_in_a_worker(lab, tmp_path):
    """And not the one that another user started last on this machine, and that may be dead by now."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:9")

    @ray.remote(runtime_env={"env_vars": {"RAY_TMPDIR": str(tmp_path)}})
    def task():
        from ray.util import state

        return {node.node_name for node in state.list_nodes(timeout=300)}

    assert ray.get(task.remote(), timeout=300) == {"head", "node-2"}


def actors(lab):
    """The classes of the actors that are alive, by pid."""
    from ray.util import state

    alive = [("state", "=", "ALIVE")]
    found = state.list_actors(lab.address, filters=alive, timeout=300, raise_on_missing_output=False)
    return {actor.pid: actor.class_name.split(".")[-1] for actor in found}


def test_what_a_short_run_does_not_need_starts_later_or_not_at_all(lab, tmp_path):
    """A run without data sets refuses them in Ray's words; a controller's death leaves no CPU taken."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    until(lambda: about(num_cpus=0)["shorter"])  # the server imports it when no request comes for a while
    done = tmp_path / "done"

    def loop():
        import time

        import ray.train

        try:
            ray.train.get_dataset_shard("films")
        except KeyError as error:
            ray.train.report({"error": 1})
            done.write_text(str(error))
        time.sleep(600)

    ended = []
    config = RunConfig(storage_path=str(tmp_path))
    trainer = TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=2), run_config=config)

    def fit():
        try:
            trainer.fit()
        except ray.exceptions.RayActorError as error:
            ended.append(error)

    thread = threading.Thread(target=fit)
    thread.start()
    until(done.exists)
    assert "Dataset shard for 'films' not found" in done.read_text()
    until(lambda: {"PreemptionWatcher", "PlacementGroupCleaner"} <= set(actors(lab).values()))
    names = actors(lab)
    assert "DatasetManager" not in names.values()
    (controller,) = (pid for pid, name in names.items() if name == "TrainController")
    os.kill(controller, signal.SIGKILL)
    thread.join(300)
    assert ended
    groups = ray.util.placement_group_table
    until(lambda: all(group["state"] == "REMOVED" for group in groups().values()))
    assert idle(lab)


WITHOUT = """
import ray
from labkit.local import cluster
lab = cluster.start()
print(lab.address)
print(ray.get(ray.remote(lambda: __import__("sys").argv[0]).remote()), lab.preloader)
lab.stop()
"""


def test_a_server_that_was_killed_costs_time_and_nothing_else(home, lab):
    for pid in servers(home).values():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not about(num_cpus=1)["loaded"])  # an idle worker that was forked before may be used first
    # Another notebook finds the cluster, and does not take it for a broken one. It may do without a server.
    address, command, *_ = python(WITHOUT, LABKIT_PRELOAD="0").stdout.splitlines()
    assert address == lab.address and command.endswith("default_worker.py None")
    assert len(lab.nodes) == 2


def test_a_new_connection_gets_new_servers_and_a_lost_node_takes_its_own_along(home, lab):
    ray.shutdown()
    assert cluster.start() is lab
    assert set(servers(home)) == {"head", "node-2"}
    assert about(num_cpus=1)["loaded"]
    server = servers(home)["node-2"]
    lab.remove_node("node-2")
    assert not runs(server)
    node = lab.add_node(cpus=2)
    assert set(servers(home)) == {"head", node.name}


def test_the_launcher_is_python_for_all_else_and_is_left_out_where_no_program_may_run(home, monkeypatch):
    preloader = preload.Preloader(Lab(home), ([], [], []))
    launcher = Path(preloader.make_launcher())
    assert launcher.parent == Lab(home).folder and launcher.stat().st_mode & 0o777 == 0o700
    code = "import sys; print(sys.executable, sys.argv[1:])"
    done = subprocess.run([launcher, "-c", code, "two words", "$HOME"], capture_output=True, text=True)
    assert done.stdout.strip() == f"{sys.executable} ['two words', '$HOME']"

    def refuse(*_, **__):
        raise PermissionError("noexec")

    monkeypatch.setattr(preload.subprocess, "run", refuse)
    assert preloader.make_launcher() == sys.executable
