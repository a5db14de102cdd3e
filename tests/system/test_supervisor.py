"""The supervisor: what it starts, keeps, ends and hands on, with real processes of a home of their own."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import labs
from labkit import process_info
from labkit.errors import LabError, NotReachable
from labkit.local import family, lab, supervisor
from labkit.local.lab import Lab
from labs import runs, until

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/cluster/")]


SLEEP = ["sleep", "900"]


@pytest.fixture
def home():
    with labs.home() as folder:
        yield folder


@pytest.fixture
def start(home, tmp_path):
    def start(command, group="one", **more):
        return Lab(home).start(command, group=group, log=tmp_path / "log", **more)

    return start


def sleepers(home, group="one"):
    return [
        member.pid
        for member in Lab(home).running(group)
        if process_info.program_name(member.process) == "sleep"
    ]


def supervisors(home):
    members = Lab(home).running(family.SUPERVISOR)
    return [member.process for member in members if member.program == "supervisor"]


def supervisor_of(home):
    """The supervisor; of two that start at once, that which stays."""
    until(lambda: len(supervisors(home)) == 1)
    return supervisors(home)[0]


# A user that is a process of its own.
USER = """
import os, sys, time
from pathlib import Path
from labkit.local.lab import Lab
home, keep, fork = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
Lab(home).use("one", keep=keep)
Lab(home).start(["sleep", "900"], group="one", log=home / "log")
if fork == "fork" and os.fork() == 0:
    time.sleep(600)
    os._exit(0)
print("ready", flush=True)
time.sleep(900)
"""


@pytest.fixture
def user(home, tmp_path):
    """Starts a process that uses the group "one", with a `sleep` in it."""
    users = []

    def user(keep=0.5, fork="", folder=tmp_path):
        command = [sys.executable, "-P", "-c", USER, home, str(keep), fork]
        options = {"cwd": folder, "stdout": subprocess.PIPE, "text": True, "process_group": 0}
        users.append(subprocess.Popen(list(map(str, command)), **options))
        assert users[-1].stdout.readline() == "ready\n"
        return users[-1]

    yield user
    for process in users:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and its fork
        process.wait()
        process.stdout.close()


# -- starting ---------------------------------------------------------------------------------------------


@pytest.mark.each_change
def test_what_is_started_has_a_session_of_its_own_and_tells_its_status(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = f"echo $WORD ${family.MARK}; pwd; cat; echo err >&2; exit 3"
    (tmp_path / "input").write_text("given\n")
    with open(tmp_path / "input") as standard_input:
        started = start(["sh", "-c", script], env={"WORD": "hello"}, stdin=standard_input.fileno())
    until(lambda: started.status() is not None)
    assert started.status() == 3
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0].startswith("hello one@") and lines[1:] == [str(tmp_path), "given", "err"]
    sleeper = start(SLEEP)
    assert os.getsid(sleeper.pid) == sleeper.pid != os.getsid(0) and sleeper.status() is None
    os.kill(sleeper.pid, signal.SIGKILL)
    until(lambda: sleeper.status() == -signal.SIGKILL)
    assert not psutil.pid_exists(sleeper.pid)  # no zombie stays


@pytest.mark.each_change
def test_what_is_started_leaves_no_core_dump(start):
    """A core dump has the memory in it, and so the keys."""
    assert resource.prlimit(start(SLEEP).pid, resource.RLIMIT_CORE) == (0, 0)


def test_what_cannot_be_started_is_an_error(home, start, tmp_path):
    with pytest.raises(LabError, match="no-such-program"):
        start(["/no-such-program"])
    with pytest.raises(LabError, match="LABKIT_HOME"):
        Lab(home).start(SLEEP, group="one", log=home / "ray" / "log" / "x" / ("y" * 300))
    (tmp_path / "file").touch()
    with pytest.raises(NotReachable, match="start the lab's supervisor"):
        Lab(tmp_path / "file" / "home").use("one")
    assert Lab(home).groups() == set()


def test_only_its_user_reaches_its_socket(home, start):
    start(SLEEP)
    path = Lab(home).folder / "lab.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.parent.stat().st_mode & 0o777 == 0o700


def test_a_file_of_the_readers_beside_the_notebook_does_not_break_it(home, user, tmp_path):
    for name in ("numbers.py", "select.py"):
        (tmp_path / name).write_text("raise SystemExit('I am not the standard library')")
    user(folder=tmp_path)
    assert sleepers(home)


# -- stopping ---------------------------------------------------------------------------------------------


@pytest.mark.each_change
@pytest.mark.parametrize(
    "script",
    [
        "sleep 120 & sleep 121 & wait",
        "setsid sleep 120 & (setsid sleep 121 &) ; sleep 0.2",  # daemons, as of `ray start`
        "(env -i setsid sleep 120 &) ; sleep 120",  # one without the mark
        "trap '' TERM; sleep 120",  # one that does not want to end
    ],
)
def test_stop_ends_all_of_a_group_and_nothing_else(home, start, script):
    other = subprocess.Popen(SLEEP, start_new_session=True)
    try:
        kept, began = start(SLEEP, "another"), start(["sh", "-c", script])
        until(
            lambda: len(sleepers(home)) + len(sleepers(home, family.SUPERVISOR)) >= script.count("sleep 12")
        )
        mine = {member.pid for member in Lab(home).running()} - {kept.pid, supervisor_of(home).pid}
        assert Lab(home).stop("one") and not Lab(home).running("one")
        assert runs(kept.pid) and began.status() is not None
        Lab(home).stop()
        assert not any(map(runs, {*mine, kept.pid})) and not Lab(home).running()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


LISTENS = """
import time
from multiprocessing import connection
one = connection.Listener(family="AF_UNIX")
print(one.address, flush=True)
time.sleep(900)
"""


def test_the_temporary_folder_of_a_terminated_process_goes_with_it(start, home, tmp_path):
    """Ray's dashboard starts processes by `multiprocessing`, which cleans up only where a process exits."""
    start([sys.executable, "-c", LISTENS], env={**os.environ, "TMPDIR": "/tmp"})
    until(lambda: (tmp_path / "log").read_text())
    folder = Path((tmp_path / "log").read_text().strip()).parent
    assert folder.name.startswith("pymp-") and folder.exists()
    Lab(home).stop("one")
    assert not folder.exists()


def test_a_process_of_another_lab_is_not_ours(home, start, tmp_path):
    (tmp_path / "other").mkdir()
    start(SLEEP)
    other = Lab(tmp_path / "other").start(SLEEP, group="one", log=tmp_path / "log")
    assert other.pid not in {member.pid for member in Lab(home).running()}
    Lab(home).stop()
    assert runs(other.pid)
    Lab(tmp_path / "other").stop()
    assert not runs(other.pid)


# -- users ------------------------------------------------------------------------------------------------


@pytest.mark.each_change
@pytest.mark.parametrize("fork", ["", "fork"])
def test_a_killed_user_leaves_nothing_also_where_a_fork_of_it_lives(home, user, fork):
    """A fork holds the sockets of its parent."""
    process = user(fork=fork)
    assert Lab(home).users() == {"one": [process.pid]}
    process.kill()
    process.wait()
    until(lambda: not Lab(home).running())  # also the supervisor


def test_another_user_keeps_it_running(home, user):
    process = user()
    Lab(home).use("one", keep=0.5)
    process.kill()
    process.wait()
    until(lambda: Lab(home).users() == {"one": [os.getpid()]})
    time.sleep(2)  # longer than it is kept
    assert sleepers(home)


def test_a_removed_home_stops_the_lab(home, user):
    """`rm -rf .labkit` while the lab runs: after that, only the supervisor knows of it."""
    user(keep=60)
    (pid,) = sleepers(home)
    shutil.rmtree(home)
    until(lambda: not runs(pid))
    home.mkdir()


# -- the end of the supervisor ----------------------------------------------------------------------------


@pytest.mark.each_change
def test_a_killed_supervisor_is_replaced_and_its_processes_run_on(home, user):
    process = user()
    before, pids = supervisor_of(home), sleepers(home)
    before.kill()
    until(lambda: Lab(home).users() == {"one": [process.pid]})
    assert supervisor_of(home) != before and sleepers(home) == pids
    process.kill()
    process.wait()
    until(lambda: not Lab(home).running())


def test_a_home_that_cannot_be_looked_at_for_a_moment_is_there(home, monkeypatch):
    """A network's disk, or a ticket that is over: an error there would leave all that runs alone."""
    looking = supervisor.Supervisor(home, home / "socket", 60)

    def stale(self):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(Path, "exists", stale)
    assert looking._has_home()


@pytest.mark.parametrize("way", ["killed", "frozen with its user"])
def test_stop_without_a_supervisor_leaves_nothing(home, user, way):
    process = user(keep=60)
    if way == "killed":
        process.kill()
        process.wait()
        supervisor_of(home).kill()
    else:
        supervisor_of(home).suspend()
        supervisor_of(home).kill()
    Lab(home).stop()
    until(lambda: not Lab(home).running())


def test_one_of_another_version_is_named_at_once_and_can_be_stopped(home, start, monkeypatch):
    start(SLEEP)
    monkeypatch.setattr(lab, "PROTOCOL", 0)
    monkeypatch.setattr(lab, "_START_SECONDS", 1e9)
    with pytest.raises(NotReachable, match="another version") as raised:
        Lab(home).use("two")
    assert "labkit stop" in raised.value.fix
    assert Lab(home).stop() and not Lab(home).running()
