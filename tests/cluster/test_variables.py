"""Workers of a cluster that an earlier kernel started have the variables and the folder of this kernel."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from kernels import kernel
from labkit import machine
from labkit.local import variables
from labkit.local.lab import Lab
from labkit.local.variables import REMOVED, Changes, changes

BEFORE = {
    "HF_HOME": "/data/apple",
    "HF_TOKEN": "hf_apple_0123456789",
    "TF_USE_LEGACY_KERAS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_health_check_period_ms": "3000",
}
NOW = {
    "HF_HOME": "/data/pear",
    "HF_TOKEN": "hf_pear_0123456789",  # a secret that differs, and one that is new
    "WANDB_API_KEY": "wandb_pear_0123456789",
    "DATABASE": "postgres://me:pear_0123456789@host/runs",
    "WANDB_MODE": "offline",
    "NCCL_DEBUG": "INFO",
    "OMP_NUM_THREADS": "2",
    "PRICE": "5 $HOME ${HOME} größe",  # Ray would replace the names
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_health_check_period_ms": "4000",
    "RAY_TRAIN_COLLATE_CONCURRENCY": "7",
}
START = """
import json, os, warnings
from labkit.local import cluster
FIRST
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    lab = cluster.start(PRELOAD)
said = [str(one.message) for one in said if "cluster" in str(one.message)]
"""
LOOK = """
import ray
@ray.remote
class Actor:
    def about(self):
        import os
        try:
            import of_the_new_pythonpath
        except ImportError:
            of_the_new_pythonpath = None
        return dict(os.environ), os.getcwd(), os.getppid(), of_the_new_pythonpath is not None

def about(**own):
    actor = Actor.options(runtime_env={"env_vars": own} if own else None).remote()
    try:
        return ray.get(actor.about.remote(), timeout=120)
    finally:
        ray.kill(actor)

def task():
    return dict(os.environ), os.getcwd()

actor, task, explicit = about(), ray.get(ray.remote(task).remote()), about(TF_USE_LEGACY_KERAS="1")
print("SEEN" + json.dumps([dict(os.environ), os.getcwd(), actor, task, explicit[0], said]) + "SEEN")
"""


def seen(cell):
    assert cell.error is None, cell
    return json.loads(cell.text.split("SEEN")[1])


@pytest.mark.fault
@pytest.mark.parametrize("preload", ["", "preload=[]"])
def test_a_restarted_kernel_gives_its_workers_what_ray_init_would(home, tmp_path, preload):
    code = START.replace("PRELOAD", preload)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "of_the_new_pythonpath.py").touch()
    paths = [str(tmp_path / "modules"), *filter(None, [os.environ.get("PYTHONPATH")])]
    now = {**NOW, "PYTHONPATH": os.pathsep.join(paths)}
    with kernel(**BEFORE) as first:
        started = first.run(code.replace("FIRST", ""))
        assert started.error is None, started
        first.kill()
        with kernel(**now) as second:
            there = f"os.chdir({str(tmp_path)!r})"
            mine, folder, actor, task, explicit, said = seen(second.run(code.replace("FIRST", there) + LOOK))
            (theirs, *where, parent, imported) = actor
            log = (Lab(home).folder / "forkserver-head.log").read_text()
            secrets = {name for name in mine if variables._is_secret(name, mine[name])}
            without = set() if not preload else secrets & now.keys()
            for name in now.keys() - without - {"RAY_health_check_period_ms"}:
                assert theirs[name] == task[0][name] == explicit[name] == mine[name] == now[name], (name, log)
            assert "TF_USE_LEGACY_KERAS" not in theirs and "TF_USE_LEGACY_KERAS" not in task[0]
            assert explicit["TF_USE_LEGACY_KERAS"] == "1"  # an actor's own counts more
            assert where == [folder] and task[1] == folder == str(tmp_path) and imported
            # What can't be given is named, with a fix; nothing else is.
            (line,) = said
            named = sorted({"RAY_health_check_period_ms", *without})
            assert f"other values of {', '.join(named)}, and" in line and "lab.stop()" in line
            if not preload:
                (server,) = [
                    member.pid
                    for member in Lab(home).running("cluster")
                    if member.is_origin and member.program == "forkserver"
                ]
                assert parent == server, log
            assert written_or_shown(home, "pear_0123456789") == []
            late = second.run(
                "os.environ['HF_HOME'] = '/data/plum'\n" + code.replace("FIRST", "") + "print(said)"
            )
            assert "HF_HOME changed after this process had connected" in late.text, late
            fixed = code.replace("FIRST", "ray.shutdown()") + LOOK
            again = seen(second.run(fixed))
            assert again[2][0]["HF_HOME"] == "/data/plum" and "after this process" not in str(again[5])
            assert second.run("lab.stop()").error is None


def written_or_shown(home, secret):
    """The files of a home, and the command lines, that have a secret."""
    files = [path for path in Path(home).rglob("*") if path.is_file() and not path.is_symlink()]
    places = [str(path) for path in files if secret.encode() in path.read_bytes()]
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        places += [command] if secret in command else []
    return places


def raylet(folder="/", **environment):
    return SimpleNamespace(environ=lambda: environment, cwd=lambda: folder)


def test_a_cluster_of_this_kernel_differs_in_nothing(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    here = {"A": "1", "PATH": "/bin", "RAY_AUTH_MODE": "token", "SHLVL": "2", "JPY_PARENT_PID": "3"}
    node = raylet(str(tmp_path), A="1", PATH="/bin", LD_PRELOAD="x", LABKIT_GROUP="cluster@1", SHLVL="1")
    difference = changes(here, [node], forked=True)
    assert difference == Changes()
    assert difference.command("python -I") == "python -I" and difference.command(None) is None
    assert changes(here, [], forked=True) == Changes()  # its nodes have just ended


def test_each_kind_of_variable():
    here = {"A": "new", "B_TOKEN": "s", "C": "https://me:s@host", "D": "a $B", "RAY_event_stats": "1"}
    nodes = [raylet(A="old", GONE="1", **{"BASH_FUNC_x%%": "() {}"}), raylet(A="new", OTHER_KEY="s")]
    difference = changes(here, nodes, forked=True)
    assert difference.added == {"A": "new"} and difference.removed == ("GONE", "OTHER_KEY")
    assert difference.handed == {"B_TOKEN": "s", "C": "https://me:s@host", "D": "a $B"}
    assert difference.kept == ("RAY_event_stats",) and "me:s" not in repr(difference)
    assert difference.applied_to({"GONE": "1", "B_TOKEN": "t", "Z": "z"}) == {
        "Z": "z",
        **difference.added,
        **difference.handed,
    }
    assert difference.env_vars == {"A": "new", "GONE": REMOVED, "OTHER_KEY": REMOVED}
    plain = changes(here, nodes, forked=False)
    assert plain.kept == ("B_TOKEN", "C", "D", "RAY_event_stats") and not plain.handed


@pytest.mark.parametrize("gpus", [(), ("H100",)])
def test_gpus_are_given_out_by_nodes(monkeypatch, gpus):
    monkeypatch.setattr(machine, "gpus", lambda: gpus)
    difference = changes({"CUDA_VISIBLE_DEVICES": "1"}, [raylet(CUDA_VISIBLE_DEVICES="0")], forked=True)
    assert difference.kept == (("CUDA_VISIBLE_DEVICES",) if gpus else ())
    assert difference.added == ({} if gpus else {"CUDA_VISIBLE_DEVICES": "1"})


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "MYSQL_PWD", "api_key"])
def test_a_secret_by_its_name(name):
    here = {name: "x", "TOKENIZERS_PARALLELISM": "false"}
    difference = changes(here, [raylet()], forked=True)
    assert (difference.handed, difference.added) == ({name: "x"}, {"TOKENIZERS_PARALLELISM": "false"})
