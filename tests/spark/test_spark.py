"""Spark on this machine: what `prepare` sets, what is in its way, and that nothing of Spark is left."""

import contextlib
import os
import socket
import stat
from pathlib import Path

import psutil
import pyspark
import pytest

import labs
from kernels import kernel
from labkit.errors import BadInput, LabError
from labkit.local import spark
from labkit.local.lab import Lab
from labkit.local.spark import group
from labkit.spark.prepared import folder_of
from labs import processes_of, python, until, wait_until_nothing_lives

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/spark/")]


SESSION = """
from labkit.local import spark
spark.prepare()
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[1]").getOrCreate()
print("rows", session.range(3).count())
"""


@pytest.fixture(autouse=True)
def variables():
    """The environment as it was, afterwards: a kernel that a test starts has none of what `prepare` set."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def test_two_executors(home):
    from pyspark.sql import SparkSession

    installed = Path(pyspark.__file__).parent
    before = set(installed.iterdir())
    spark.prepare()
    spark.prepare()  # the cell is run a second time
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    session = builder.config("spark.cores.max", 2).getOrCreate()
    context = session.sparkContext
    assert context.defaultParallelism == 2
    mine = group()
    assert [member.role for member in Lab(home).running(mine) if member.is_origin] == ["spark: java"]
    pids = context.parallelize(range(2), 2).map(lambda _: os.getppid()).collect()
    assert len(set(pids)) == 2  # one Python daemon under each executor
    # Not out of the zip that Spark would put before it: each new process would compile that again.
    (source,) = context.parallelize([0], 1).map(lambda _: pyspark.__file__).collect()
    assert source == pyspark.__file__
    assert set(installed.iterdir()) == before  # Spark writes nothing into the installed package
    defaults = folder_of(home) / "conf" / "spark-defaults.conf"
    assert stat.S_IMODE(defaults.stat().st_mode) == 0o600
    secret = defaults.read_text().split("spark.authenticate.secret ")[1].split()[0]
    assert context.getConf().get("spark.authenticate.secret") == secret
    members = [member.process for member in Lab(home).running(mine)]
    commands = [" ".join(process.cmdline()) for process in members]
    assert len(commands) >= 5  # driver, two executors with their Python daemons
    assert not any(secret in command for command in commands)
    addresses = {
        connection.laddr.ip
        for process in members
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert {ip.removeprefix("::ffff:") for ip in addresses} <= {"127.0.0.1", "::1"}
    labs.end_spark()
    until(lambda: not Lab(home).groups())


THEIRS = {
    "a Connect server": {"SPARK_REMOTE": "sc://localhost:15002"},
    "Connect mode": {"SPARK_CONNECT_MODE_ENABLED": "1"},
    "Connect by API mode": {"SPARK_API_MODE": "connect"},
    "nothing to submit": {"PYSPARK_SUBMIT_ARGS": "--driver-memory 1g"},
    "a shell that has ended": {"PYSPARK_GATEWAY_PORT": "9", "PYSPARK_GATEWAY_SECRET": "abc"},
    "two of them": {"SPARK_REMOTE": "local[2]", "PYSPARK_SUBMIT_ARGS": ""},
}


@pytest.mark.parametrize("theirs", THEIRS.values(), ids=THEIRS)
def test_a_variable_of_another_tutorial_is_named_and_the_fix_works(home, theirs):
    os.environ.update(theirs)
    with pytest.raises(BadInput, match="another tutorial has set") as raised:
        spark.prepare()
    assert all(name in raised.value.fact and f'"{name}"' in raised.value.fix for name in theirs)
    exec(raised.value.fix.partition(", then")[0])
    spark.prepare()


def test_variables_that_are_not_in_the_way(home):
    with socket.create_server(("127.0.0.1", 0)) as shell:
        os.environ["PYSPARK_GATEWAY_PORT"] = str(shell.getsockname()[1])
        os.environ["PYSPARK_SUBMIT_ARGS"] = "--driver-memory 1g pyspark-shell"
        os.environ["SPARK_API_MODE"] = "classic"
        spark.prepare()


LOADER = """
import os, sys
os.environ["TMPDIR"] = sys.argv[1]
from labkit.local import spark
spark.prepare()
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[2]").getOrCreate()

def train():
    import torch
    from torch.utils.data import DataLoader
    return sum(len(batch) for batch in DataLoader(torch.ones(8, 4), batch_size=2, num_workers=1))

print("rows", TorchDistributor(num_processes=2, local_mode=True, use_gpu=False).run(train))
"""


def test_a_loader_with_processes_in_a_rank_whose_temporary_folder_has_a_long_path(home, tmp_path):
    folder = tmp_path / ("slurm-job-" + "4" * 80)
    folder.mkdir()
    done = python(LOADER, str(folder), timeout=120)
    assert "rows 8" in done.stdout and done.returncode == 0, done.stdout


def test_an_old_spark_and_another_python_are_replaced(home):
    old = {"SPARK_HOME": "/opt/spark-2.4.8", "SPARK_CONF_DIR": "/opt/spark-2.4.8/conf"}
    done = python(SESSION, **old, PYSPARK_PYTHON="/usr/bin/python9", PYSPARK_DRIVER_PYTHON="jupyter")
    assert "rows 3" in done.stdout and done.returncode == 0, done.stdout
    until(lambda: not Lab(home).groups())  # a script that just ends leaves nothing


def test_a_home_with_a_space_and_an_umlaut(home):
    spaced = home / "mein Läbor"
    done = python(SESSION.replace("local[1]", "local-cluster[1,1,1024]"), LABKIT_HOME=str(spaced))
    assert "rows 3" in done.stdout and done.returncode == 0, done.stdout
    (log,) = spaced.glob("spark/*/logs/driver.log")
    assert log.is_file()
    until(lambda: not Lab(spaced).groups())


def test_a_home_that_cannot_be_written_to(home):
    with contextlib.suppress(FileNotFoundError):
        (home / "spark").rename(home / "before")
    (home / "spark").touch()
    with pytest.raises(LabError, match="for Spark"):
        spark.prepare()
    (home / "spark").unlink()


def test_without_pyspark_the_fix_installs_it(home, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LabError, match="pyspark is not installed"):
        spark.prepare()


@pytest.mark.fault
def test_labkit_stop_ends_the_spark_of_a_living_kernel_and_a_kill_leaves_nothing(home):
    with kernel() as notebook:
        begun = notebook.run(SESSION.replace("local[1]", "local-cluster[2,1,1024]"))
        assert begun.error is None, begun.error
        done = python("from labkit.__main__ import main; main(['stop'])")
        assert "stopped spark: java" in done.stdout
        assert Lab(home).groups() == set()
        assert "java" not in str(processes_of(home))
    with kernel() as notebook:
        begun = notebook.run(SESSION.replace("local[1]", "local-cluster[1,1,1024]"))
        assert begun.error is None, begun.error
        notebook.kill()
        wait_until_nothing_lives(home)
    assert Lab(home).groups() == set()
