"""What the lab started is found again, stopped whole, and nothing else is touched."""

import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from labkit import machine
from labkit.__main__ import main
from labkit.errors import LabError
from labkit.system import process_info
from labkit.system.process_info import ProcessIdentity
from labkit.system.process_registry import GROUP_VARIABLE, ProcessRegistry
from labs import runs, until

SLEEP = ["sleep", "120"]


@pytest.fixture
def registry(tmp_path):
    registry = ProcessRegistry(tmp_path / "home")
    yield registry
    registry.stop_all()
    for path in tmp_path.glob("**/*"):
        path.chmod(0o700)


@pytest.fixture
def foreign():
    """A process without a record, in a session of its own."""
    process = subprocess.Popen(SLEEP, start_new_session=True)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def start(registry, tmp_path):
    def start(command=SLEEP, *, role="sleeper", group_id="one", log="log", **options):
        return registry.start(command, role=role, group_id=group_id, log=tmp_path / log, **options)

    return start


def marked(group_id):
    """Pids of all living processes with the mark of a lab, wherever they are."""
    return {
        process.pid
        for process, _ in process_info.iter_processes()
        if process_info.get_env(process, GROUP_VARIABLE) == group_id
    }


def shell(script):
    return ["sh", "-c", script]


def path_of(registry, entry):
    return registry._folder / entry.group_id / f"{entry.pid}.json"


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# -- start and record -----------------------------------------------------------------------------------


def test_what_is_started_is_recorded(registry, start, tmp_path):
    assert (registry.records(), registry.groups(), registry.stop_all()) == ([], [], [])
    assert registry.stop("never-was") == [] and not registry.has_owner("never-was")
    assert not list(tmp_path.iterdir())  # nothing is made before the first start
    (tmp_path / "log").write_text("before\n")
    script = f"echo $WORD ${GROUP_VARIABLE} $HOME; echo err >&2; exec sleep 120"
    process = start(shell(script), role="head: raylet", env={"WORD": "hello", "PATH": os.environ["PATH"]})
    (entry,) = registry.records("one")
    assert (entry.pid, entry.role, entry.group_id) == (process.pid, "head: raylet", "one")
    assert entry.session == process.pid == os.getsid(process.pid)  # a session of its own
    assert entry.alive and registry.groups() == ["one"]
    until(lambda: (tmp_path / "log").read_text() == "before\nhello one\nerr\n")
    assert stat.S_IMODE((registry._folder / "one").stat().st_mode) == 0o700
    with pytest.raises(LabError, match="no/such/program"):
        start(["/no/such/program"])
    time.sleep(0.02)  # the system counts in hundredths of a second
    start(role="later", group_id="another")
    assert [entry.role for entry in registry.records()] == ["head: raylet", "later"]
    assert [entry.role for entry in registry.records("another")] == ["later"]


@pytest.mark.skipif(sys.platform != "linux", reason="there is no prlimit")
def test_what_is_started_leaves_no_core_dump(start):
    """A core dump has the memory in it, and so the keys."""
    process = start()
    assert resource.prlimit(process.pid, resource.RLIMIT_CORE) == (0, 0)


def test_a_child_that_nobody_waited_for_is_dead(registry, start):
    process = start()
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    (entry,) = registry.records()
    assert not entry.alive
    assert registry.members("one") == []
    assert registry.stop("one") == []
    process.wait()


@pytest.mark.parametrize("below", ["home", "log"])
def test_a_folder_that_cannot_be_written(tmp_path, below):
    # Root may write anywhere, but not below a file.
    (tmp_path / "file").touch()
    home = tmp_path / ("file" if below == "home" else "dir") / "home"
    log = tmp_path / ("file" if below == "log" else "dir") / "log"
    with pytest.raises(LabError) as caught:
        ProcessRegistry(home).start(SLEEP, role="sleeper", group_id="unwritable-test", log=log)
    assert "file" in str(caught.value) and "LABKIT_HOME" in caught.value.fix
    assert marked("unwritable-test") == set()  # what can't be found again does not run


# -- stop -----------------------------------------------------------------------------------------------


def test_stop_ends_and_forgets(registry, start, foreign):
    process = start()
    dead = start(shell("exit 0"), role="dead")
    dead.wait()
    other = start(group_id="two")
    stopped = registry.stop("one")
    assert [(entry.pid, entry.role) for entry in stopped] == [(process.pid, "sleeper")]
    assert not runs(process.pid)
    assert runs(foreign.pid) and runs(other.pid)
    assert registry.groups() == ["two"]
    assert registry.stop("one") == []
    assert [entry.pid for entry in registry.stop_all()] == [other.pid]
    assert registry.groups() == [] and not runs(other.pid) and runs(foreign.pid)


def test_one_session_of_several(registry, start, tmp_path):
    """One node of a cluster goes, also one that ignores SIGTERM; the others stay."""
    first = start(shell('trap "" TERM; echo up; while :; do sleep 0.05; done'), role="node-2")
    second = start(role="node-3")
    until(lambda: (tmp_path / "log").read_text())
    (entry,) = registry.stop("one", session=first.pid, grace=0.3)
    assert entry.role == "node-2"
    assert not runs(first.pid) and runs(second.pid)
    assert [entry.pid for entry in registry.records("one")] == [second.pid]


def test_the_last_one_started_is_asked_first(registry, start, tmp_path):
    """In a session, what was started later depends on what was started before."""
    order, late = tmp_path / "order", tmp_path / "late.sh"
    loop = "echo up; while :; do sleep 0.05; done"
    late.write_text(f'trap "sleep 0.5; echo last >> {order}; exit" TERM; {loop}')
    start(shell(f'trap "echo first >> {order}; exit" TERM; sh {late} & echo $! > {tmp_path}/pid; {loop}'))
    until(lambda: (tmp_path / "log").read_text().count("up") == 2)
    registry.record(int((tmp_path / "pid").read_text()), role="depends on the first", group_id="one")
    registry.stop("one", grace=30)
    assert order.read_text().split() == ["last", "first"]


def test_orphans_of_a_leader_that_is_gone(registry, start, tmp_path):
    leader = start(shell(f"sleep 120 & echo $! > {tmp_path}/orphan"))
    leader.wait()
    orphan = int((tmp_path / "orphan").read_text())
    assert [process.pid for process in registry.members("one")] == [orphan]
    assert registry.stop("one") == []  # the one that was recorded had ended by itself
    assert not runs(orphan)


@pytest.mark.parametrize(
    "script",
    [
        "(sleep 120 & echo $! > {pid}) & sh -c 'sleep 120; :' & wait $!",  # an orphan
        "setsid sh -c 'echo $$ > {pid}; exec sleep 120' & wait",  # in a session of its own
        "env -i sleep 120 & echo $! > {pid}; wait",  # Ray's workers overwrite theirs with their title
    ],
)
def test_all_descendants_are_found(registry, start, tmp_path, script):
    file = tmp_path / "pid"
    start(shell(script.format(pid=file)))
    until(lambda: file.exists() and file.read_text().strip())
    pid = int(file.read_text())
    until(lambda: pid in {process.pid for process in registry.members("one")})
    until(lambda: psutil.Process(pid).name() == "sleep")
    registry.stop("one")
    assert not runs(pid) and marked("one") == set()


def test_it_does_not_stop_itself(registry, start, tmp_path):
    code = (
        "import os\n"
        "from labkit.system.process_registry import ProcessRegistry\n"
        f"stopped = ProcessRegistry({str(tmp_path / 'home')!r}).stop('one')\n"
        "print('still here', len(stopped))\n"
    )
    sleeper = start()
    start([sys.executable, "-c", code], role="who stops", log="out").wait(60)
    assert (tmp_path / "out").read_text() == "still here 2\n"
    assert not runs(sleeper.pid) and registry.groups() == []


@pytest.mark.timeout(40)
def test_a_zombie_of_somebody_else_is_not_waited_for(registry, start, tmp_path):
    """In a container there may be no process that reaps orphans."""
    code = (
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '120'], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(120)\n"
    )
    start([sys.executable, "-c", code])
    until(lambda: (tmp_path / "log").read_text().strip())
    child = int((tmp_path / "log").read_text())
    process_info.terminate([psutil.Process(child)], grace=100)
    assert psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_looking_while_others_clear_away(registry):
    """`labkit stop` in one terminal, a kernel that looks for its cluster in another."""
    done = threading.Event()

    def churn():
        folder = registry._folder / "one"
        while not done.is_set():
            folder.mkdir(parents=True, exist_ok=True)
            for k in range(10):
                (folder / f"{k + 10}.json").write_text("{}")
            shutil.rmtree(folder, ignore_errors=True)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            assert registry.records() == []
            assert not registry.has_owner("one")
            assert set(registry.groups()) <= {"one"}
    finally:
        done.set()
        thread.join()


# -- processes of others --------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"created": 17.25}, {"boot": "another"}], ids=["created", "boot"])
def test_a_pid_that_was_used_again_is_not_ours(registry, foreign, change):
    entry = registry.record(foreign.pid, role="raylet", group_id="one")
    assert entry.alive
    edit(path_of(registry, entry), **change)
    (again,) = registry.records()
    assert again.session == foreign.pid and not again.alive
    assert registry.members("one") == []
    assert registry.stop("one") == []
    assert runs(foreign.pid)
    assert registry.groups() == []  # and the record is cleared away
    assert ProcessIdentity.of(os.getpid()).alive and not ProcessIdentity.of(2**22 + 1).alive


def test_who_overwrote_its_environment_elsewhere_is_not_ours(registry, start):
    wiped = subprocess.Popen(["env", "-i", *SLEEP], start_new_session=True)
    try:
        start()
        dead = start(shell("exit"))
        dead.wait()
        edit(registry._folder / "one" / f"{dead.pid}.json", session=wiped.pid)
        registry.stop("one")
        assert wiped.poll() is None
    finally:
        wiped.kill()
        wiped.wait()


def test_the_clock_may_be_set_right(registry, start, monkeypatch):
    """A step of the clock moves the time of the boot, and with it psutil's creation times."""
    process = start()
    registry.acquire("one")
    real = psutil.boot_time()
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: real + 7.0)
    assert psutil.boot_time() == real + 7.0
    assert psutil.Process(process.pid).create_time() > time.time() + 5  # what psutil says has moved
    (entry,) = registry.records()
    assert entry.alive and registry.has_owner("one")


@pytest.mark.parametrize("lab", ["", "../../etc"])
def test_an_id_that_is_a_path_is_refused(registry, start, tmp_path, lab):
    start()
    with pytest.raises(ValueError, match="not the id of a process group"):
        registry.stop(lab)
    assert registry.groups() == ["one"] and (tmp_path / "log").exists()


@pytest.mark.parametrize("text", ["", "null", '{"pid": 1}', "\xff\xfe"])
def test_damaged_records_are_passed_over_and_their_processes_are_found(registry, start, text):
    lost, process = start(), start()
    registry.acquire("one")
    for name in (f"{lost.pid}.json", "1000.json", f"owner-{os.getpid()}.json"):
        (registry._folder / "one" / name).write_text(text, encoding="latin-1")
    (registry._folder / "stray file").write_text("no folder of a lab")
    assert not registry.has_owner("one")
    assert [entry.pid for entry in registry.records()] == [process.pid]
    assert [entry.pid for entry in registry.stop_all()] == [process.pid]
    assert registry.groups() == [] and not runs(lost.pid)


# -- another machine or container with the same home --------------------------------------------------------


def test_nobody_stops_or_forgets_what_runs_on_another_machine(registry, start, monkeypatch, capsys):
    """Its records look like records of ended processes here, and its watchdog stops what has no records."""
    sleeper = start(role="head: raylet")
    registry.start_watchdog("one", seconds=60)
    monkeypatch.setenv("LABKIT_HOME", str(registry._home))
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(machine, "host_id", lambda: "other1")
        elsewhere.setattr(process_info, "_boot", lambda: "another-boot")
        elsewhere.setattr("platform.node", lambda: "seat-7")
        other = ProcessRegistry(registry._home)
        assert (other.groups(), other.records(), other.stop_all()) == ([], [], [])
        assert not other.has_owner("one") and other.elsewhere() == [os.uname().nodename]
        assert main(["stop"]) == 0
        said = capsys.readouterr().out
        other.acquire("two")
    assert "nothing of this lab" in said and os.uname().nodename in said
    time.sleep(5)  # longer than the watchdog does without records
    assert runs(sleeper.pid) and registry.has_owner("one") and len(registry.records("one")) == 2
    assert registry.elsewhere() == []  # an owner alone runs nothing


@pytest.mark.parametrize("space", ["pid", "net"])
def test_each_container_and_each_boot_is_a_host_of_its_own(monkeypatch, space):
    here, stat, read = machine.host_id(), os.stat, machine._read
    assert here == machine.host_id() and len(here) == 6
    with monkeypatch.context() as container:
        other = SimpleNamespace(st_ino=17)
        container.setattr(
            os, "stat", lambda path, **k: other if str(path).endswith(space) else stat(path, **k)
        )
        assert machine.host_id() != here
    with monkeypatch.context() as boot:
        boot.setattr(machine, "_read", lambda path: "other" if path.name == "boot_id" else read(path))
        assert machine.host_id() != here


def test_a_file_of_the_readers_beside_the_notebook_does_not_break_the_watchdog(owned_in, tmp_path):
    """`python -m` puts the current folder first on the path of modules."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "numbers.py").write_text("raise SystemExit('the reader's own')")
    owner, sleeper = owned_in(tmp_path / "notebooks")
    owner.kill()
    owner.wait()
    until(lambda: not runs(sleeper))


# -- what a command leaves running ----------------------------------------------------------------------


def test_what_a_leader_left_is_recorded_in_its_stead(registry, start, tmp_path):
    leader = start(shell("(sh -c 'sleep 120; :' &) ; (sleep 120 &)"), role="head: ray start")
    leader.wait()
    # A child has its parent's name until it runs its own program.
    until(lambda: sorted(map(process_info.program_name, registry.members("one"))) == ["sh", "sleep", "sleep"])
    left = registry.record_session(leader, role="head", group_id="one")
    # The shell and one `sleep`; the other `sleep` is a child of the shell, and found through the session.
    assert sorted(entry.role for entry in left) == ["head: sh", "head: sleep"]
    assert {entry.session for entry in left} == {leader.pid}
    assert set(registry.records()) == set(left)
    assert len(registry.members("one")) == 3
    registry.stop("one")
    assert marked("one") == set()


# -- the watchdog -----------------------------------------------------------------------------------------

OWNER = """
import sys, time
from pathlib import Path
from labkit.system.process_registry import ProcessRegistry
registry = ProcessRegistry(sys.argv[1])
sleeper = registry.start(["sleep", "120"], role="sleeper", group_id="one", log=Path(sys.argv[1]) / "log")
registry.start_watchdog("one", seconds=float(sys.argv[2]))
print(sleeper.pid, flush=True)
time.sleep(120)
"""


@pytest.fixture
def owned_in(registry, tmp_path):
    """A lab whose owner is another process, in a folder: (owner, pid of what it started)."""
    owners = []

    def owned_in(folder):
        command = [sys.executable, "-P", "-c", OWNER, str(tmp_path / "home"), "0.5"]
        owners.append(subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True))
        return owners[-1], int(owners[-1].stdout.readline())

    yield owned_in
    for owner in owners:
        owner.kill()
        owner.communicate()


@pytest.fixture
def owned(owned_in, tmp_path):
    return owned_in(tmp_path)


def test_a_killed_kernel_leaves_nothing(registry, owned):
    owner, sleeper = owned
    assert registry.has_owner("one")
    assert sorted(entry.role for entry in registry.records("one")) == ["sleeper", "watchdog"]
    owner.kill()
    owner.wait()
    assert not registry.has_owner("one")
    until(lambda: not runs(sleeper) and not registry.groups())
    until(lambda: marked("one") == set())  # the watchdog went as well


def test_stop_ends_the_watchdog_too(registry, owned):
    assert {entry.role for entry in registry.stop("one")} == {"watchdog", "sleeper"}
    assert marked("one") == set()


def test_another_kernel_takes_over(registry, owned):
    owner, sleeper = owned
    registry.acquire("one")  # this process is the restarted kernel
    owner.kill()
    owner.wait()
    time.sleep(3)  # several looks of the watchdog, each longer than its patience
    assert runs(sleeper) and registry.has_owner("one")
    edit(registry._folder / "one" / f"owner-{os.getpid()}.json", created=1.0)
    until(lambda: marked("one") == set())
    assert registry.groups() == []


def test_a_home_that_does_not_answer_for_a_moment_stops_nothing(registry, start):
    """A folder on a network, whose server is slow."""
    sleeper = start(["sleep", "120"])
    registry.start_watchdog("one", seconds=60)
    until(lambda: "watchdog" in {entry.role for entry in registry.records("one")})
    time.sleep(2)  # until it looks
    away = registry._folder.with_name("away")
    registry._folder.rename(away)
    time.sleep(1.5)  # one or two looks
    away.rename(registry._folder)
    time.sleep(2)
    assert runs(sleeper.pid) and marked("one")
    registry.stop("one")


def test_a_removed_home_stops_the_lab(registry, owned):
    """`rm -rf .labkit` while the lab runs: after that only the watchdog knows of it."""
    _, sleeper = owned
    shutil.rmtree(registry._folder)
    until(lambda: not runs(sleeper) and marked("one") == set())


def test_the_temporary_folder_of_a_terminated_process_goes_with_it(registry, start, tmp_path):
    """Ray's dashboard starts processes by `multiprocessing`, which cleans up only where a process exits."""
    code = "from multiprocessing import util, connection; import time\n"
    code += "one = connection.Listener(family='AF_UNIX'); print(one.address, flush=True); time.sleep(120)"
    start([sys.executable, "-c", code], env={**os.environ, "TMPDIR": "/tmp"})
    until(lambda: (tmp_path / "log").read_text())
    socket = (tmp_path / "log").read_text().strip()
    assert os.path.dirname(socket).startswith("/tmp/pymp-") and os.path.exists(socket)
    registry.stop("one")
    assert not os.path.exists(os.path.dirname(socket))


def test_without_patience_all_of_a_session_are_killed(registry, start):
    leader = start(["sh", "-c", "trap '' TERM; sleep 120 & sleep 121"])
    until(lambda: len(registry.members("one")) == 3)
    assert [record.pid for record in registry.stop("one", grace=0)] == [leader.pid]
    assert marked("one") == set()


def test_a_folder_that_is_made_while_others_end_goes_too(registry, start, tmp_path):
    """The dashboard, where the start of a cluster is interrupted: it goes on while the raylet signs off."""
    late = "from multiprocessing import connection; import time\ntime.sleep(1)\n"
    late += "one = connection.Listener(family='AF_UNIX'); print(one.address, flush=True); time.sleep(120)"
    code = f"import signal, subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {late!r}])\n"
    code += "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(2.5)"
    start([sys.executable, "-c", code], env={**os.environ, "TMPDIR": "/tmp"})
    until(lambda: "ready" in (tmp_path / "log").read_text())
    registry.stop("one")
    socket = (tmp_path / "log").read_text().split()[-1]
    assert os.path.dirname(socket).startswith("/tmp/pymp-") and not os.path.exists(os.path.dirname(socket))
