"""Spark on this machine: both kinds of session, and that nothing of them is left."""

import os
import signal
import stat
import threading

import psutil
import pyspark
import pytest

from kernels import kernel
from labkit.errors import LabError, RunStopped
from labkit.local import family, spark
from labkit.local import spark as driver
from labs import interrupted_inside, processes_of, python, runs, until, wait_until_nothing_lives


def driver_of(home) -> family.Member:
    (driver,) = [one for one in family.running(home) if one.is_origin and one.program == "java"]
    return driver


def test_one_jvm(home):
    handler = signal.getsignal(signal.SIGINT)
    lab = spark.session(slots=2)
    assert signal.getsignal(signal.SIGINT) is handler  # pyspark's own prints tracebacks
    assert (lab.master, lab.slots) == ("local[2]", 2)
    assert lab.spark.range(10).count() == 10
    assert spark.session(slots=2) is lab  # the cell is run a second time
    jvm = driver_of(home)
    secret_file = home / "spark" / lab.group / "conf" / "spark-defaults.conf"
    assert stat.S_IMODE(secret_file.stat().st_mode) == 0o600
    lab.stop()
    lab.stop()
    assert "stopped" in repr(lab) and "stopped" in lab._repr_html_()
    assert spark.current() is None
    assert not secret_file.exists() and not runs(jvm.pid)
    wait_until_nothing_lives(home)


def test_two_executors(home):
    with spark.session(workers=2) as lab:
        assert lab.master == "local-cluster[2,1,1024]"
        assert lab.slots == lab.spark.sparkContext.defaultParallelism == 2
        assert [one.role for one in family.running(home, lab.group) if one.is_origin] == ["spark: java"]
        pids = lab.spark.sparkContext.parallelize(range(2), 2).map(lambda _: os.getppid()).collect()
        assert len(set(pids)) == 2  # one Python daemon under each executor
        # Not out of the zip that Spark would put before it: each new process would compile that again.
        (source,) = lab.spark.sparkContext.parallelize([0], 1).map(lambda _: pyspark.__file__).collect()
        assert source == pyspark.__file__
        said = (home / "spark" / lab.group / "conf" / "spark-defaults.conf").read_text()
        secret = said.split("spark.authenticate.secret ")[1].split()[0]
        members = [one.process for one in family.running(home, lab.group)]
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
        other = spark.session(slots=1)  # a process has one session at a time: this one takes its place
        assert other.spark.range(3).count() == 3
    assert family.running(home, lab.group) == []
    other.stop()
    wait_until_nothing_lives(home)


def test_what_stands_in_the_way_of_a_start(home, tmp_path, monkeypatch):
    from pyspark import SparkContext

    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'Error: could not create the Java Virtual Machine' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LabError, match="could not create the Java") as raised:
        spark.session(slots=1)
    assert f"unset JAVA_HOME ({tmp_path})" in raised.value.fix
    assert family.groups(home) == set()
    (home / "spark").rename(home / "before")
    (home / "spark").touch()
    with pytest.raises(LabError, match="for Spark"):
        spark.session(slots=1)
    (home / "spark").unlink()
    monkeypatch.setattr(SparkContext, "_active_spark_context", type("Theirs", (), {"master": "yarn"})())
    with pytest.raises(LabError, match=r"did not start \(yarn\)"):
        spark.session(slots=1)


def test_a_script_that_just_ends(home):
    done = python("from labkit.local import spark; print(spark.session(slots=1))")
    assert done.returncode == 0, done.stdout
    assert "local[1]" in done.stdout
    wait_until_nothing_lives(home)


@pytest.mark.fault
def test_labkit_stop_ends_the_spark_of_a_living_kernel_and_a_kill_leaves_nothing(home):
    with kernel() as one:
        begun = one.run("from labkit.local import spark; lab = spark.session(workers=2); lab")
        assert begun.error is None, begun.error
        done = python("from labkit.__main__ import main; main(['stop'])")
        assert "stopped spark: java" in done.stdout
        assert family.groups(home) == set()
        assert not any("java" in line for line in processes_of(home))
        again = one.run("lab = spark.session(workers=1); lab.spark.range(3).count()")
        assert again.error is None, again.error
        one.kill()
        wait_until_nothing_lives(home)
    assert family.groups(home) == set()


def listening():
    """The ports on which this process listens: Spark's accumulators have one."""
    return {one.laddr.port for one in psutil.Process().net_connections() if one.status == "LISTEN"}


@pytest.mark.fault
@pytest.mark.parametrize("moment", ["at its beginning", "when it has a JVM", "when it has a context"])
def test_an_interrupted_start_leaves_nothing(home, moment):
    def begun():
        if moment == "when it has a context":
            return driver.active()
        return moment == "at its beginning" or "java" in [one.program for one in family.running(home)]

    before = listening()
    with pytest.raises(RunStopped, match="the start of Spark"), interrupted_inside(begun):
        spark.session(workers=2)
    assert spark.current() is None
    wait_until_nothing_lives(home)
    # A thread that waits for the JVM would keep this process from ending.
    until(lambda: not [one for one in threading.enumerate() if one.name.startswith("labkit-spark")])
    assert listening() == before


@pytest.mark.fault
def test_an_interrupted_stop_a_jvm_that_hangs_and_one_that_is_lost(home, monkeypatch):
    lab = spark.session(slots=1)
    psutil.Process(driver_of(home).pid).kill()
    until(lambda: not lab.healthy)
    another = spark.session(slots=1)
    assert another is not lab
    with pytest.raises(RunStopped, match=r"session.stop\(\): stopped by you"), interrupted_inside():
        another.stop()
    assert spark.current() is None
    hangs = spark.session(slots=1)
    monkeypatch.setattr(driver, "_PATIENCE", 2.0)
    psutil.Process(driver_of(home).pid).suspend()
    hangs.cancel()
    hangs.stop()
    wait_until_nothing_lives(home)
