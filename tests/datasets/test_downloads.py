"""Downloads: whole and right, or not at all; and what is there already is never lost."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from file_server import FileServer
from labkit.datasets.downloads import RemoteFile, fetch
from labkit.errors import DatasetError

BODY = bytes(range(256)) * 1000
FILE = RemoteFile(name="file.gz", sha256=hashlib.sha256(BODY).hexdigest(), size=len(BODY))


@pytest.fixture
def server():
    with FileServer({"set/file.gz": BODY}) as running:
        yield running


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "home" / "datasets" / "set"


def left(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def refused(folder, *addresses, file=FILE):
    with pytest.raises(DatasetError) as caught:
        fetch(file, into=folder, addresses=addresses)
    return caught.value


def test_a_file_is_fetched_once(server, folder):
    seen = []
    path = fetch(FILE, into=folder, addresses=[f"{server.url}/set/"], progress=lambda *at: seen.append(at))
    assert path == folder / "file.gz"
    assert path.read_bytes() == BODY
    assert left(folder) == ["file.gz"]
    assert seen[-1] == (len(BODY), len(BODY))
    assert seen == sorted(seen)
    fetch(FILE, into=folder, addresses=[server.url])
    assert server.requests == ["set/file.gz"]


def test_a_file_that_is_there_needs_no_network_and_writes_nothing(server, folder):
    fetch(FILE, into=folder, addresses=[f"{server.url}/set"])
    (folder / ".lock").unlink(missing_ok=True)
    server.close()
    assert fetch(FILE, into=folder, addresses=[server.url]).read_bytes() == BODY
    assert [path.name for path in folder.iterdir()] == ["file.gz"]


def test_the_next_address_is_tried(server, folder):
    addresses = ["http://127.0.0.1:9", f"{server.url}/nothing", f"{server.url}/set"]
    assert fetch(FILE, into=folder, addresses=addresses).read_bytes() == BODY
    assert server.requests == ["nothing/file.gz", "set/file.gz"]


def test_a_folder_is_an_address_too(tmp_path, folder):
    stick = tmp_path / "stick"
    stick.mkdir()
    assert "No such file" in refused(folder, str(stick)).fact
    (stick / "file.gz").write_bytes(BODY)
    assert fetch(FILE, into=folder, addresses=[str(stick)]).read_bytes() == BODY
    assert left(folder) == ["file.gz"]


def test_no_address_gives_it(server, folder):
    error = refused(folder, "http://127.0.0.1:9/x", f"{server.url}/nothing")
    assert error.attempt == "fetch file.gz of set"
    assert "http://127.0.0.1:9/x: no connection" in error.fact
    assert f"{server.url}/nothing: it answered 404" in error.fact
    for help_with in ("LABKIT_MIRROR", FILE.sha256, str(folder / "file.gz"), "LABKIT_DATASET=digits"):
        assert help_with in error.fix
    assert left(folder) == []


@pytest.mark.parametrize(
    ("body", "fact"),
    [
        (b"<html>please log in</html>", "26 bytes came with SHA-256"),
        (BODY[:-1] + b"x", "256,000 bytes came with SHA-256"),
        (b"", "0 bytes came with SHA-256"),
        (BODY + b"x", "more than the 256,000 bytes"),
    ],
)
def test_other_bytes_than_expected_are_not_kept(server, folder, body, fact):
    server.files["set/file.gz"] = body
    error = refused(folder, f"{server.url}/set")
    assert fact in error.fact
    assert left(folder) == []


def test_a_download_that_breaks_off_is_not_kept(server, folder):
    server.files["set/file.gz"] = BODY[:200_000]
    server.announced["set/file.gz"] = len(BODY)
    assert "broke after" in refused(folder, f"{server.url}/set").fact
    assert left(folder) == []


def test_an_endless_answer_is_cut_off(server, folder):
    server.endless.add("set/file.gz")
    assert "more than the 256,000 bytes" in refused(folder, f"{server.url}/set").fact
    assert left(folder) == []


def test_a_password_in_an_address_is_not_told(folder):
    error = refused(folder, "http://teacher:secret@127.0.0.1:9/x")
    assert "http://127.0.0.1:9/x" in error.fact
    assert "secret" not in str(error)
    assert "teacher" not in str(error)


def test_a_damaged_file_is_fetched_again_and_kept_while_that_fails(server, folder):
    folder.mkdir(parents=True)
    (folder / "file.gz").write_bytes(BODY[:-1] + b"x")
    refused(folder, "http://127.0.0.1:9")
    assert left(folder) == ["file.gz"]
    assert fetch(FILE, into=folder, addresses=[f"{server.url}/set"]).read_bytes() == BODY


def test_a_failure_leaves_the_other_files(server, folder):
    fetch(FILE, into=folder, addresses=[f"{server.url}/set"])
    other = RemoteFile(name="other.gz", sha256=FILE.sha256, size=FILE.size)
    refused(folder, f"{server.url}/set", file=other)
    assert left(folder) == ["file.gz"]
    assert (folder / "file.gz").read_bytes() == BODY


def test_a_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "home").write_text("a file stands where the folder should")
    error = refused(tmp_path / "home" / "set", f"{server.url}/set")
    assert "cannot be written" in error.fact
    assert "LABKIT_HOME" in error.fix


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc/passwd", ".lock"])
def test_a_name_that_leaves_the_folder_is_refused(name):
    with pytest.raises(DatasetError, match="no plain name"):
        RemoteFile(name=name, sha256=FILE.sha256, size=FILE.size)


def test_after_a_kill_in_mid_download_the_next_one_succeeds(server, folder):
    server.gate = threading.Event()
    code = (
        "from pathlib import Path; from labkit.datasets.downloads import RemoteFile, fetch\n"
        f"fetch({FILE!r}, into=Path({str(folder)!r}), addresses=[{server.url + '/set'!r}])"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        assert server.half_sent.wait(30)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert left(folder) == [".partial"]
    server.gate = None
    assert fetch(FILE, into=folder, addresses=[f"{server.url}/set"]).read_bytes() == BODY
    assert left(folder) == ["file.gz"]


def test_an_interrupt_in_mid_download_leaves_nothing(server, folder):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(FILE, into=folder, addresses=[f"{server.url}/set"], progress=interrupt)
    assert left(folder) == []


def test_processes_at_once_fetch_it_once(server, folder):
    server.gate = threading.Event()
    code = (
        "import sys; from pathlib import Path; from labkit.datasets.downloads import RemoteFile, fetch\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        f"path = fetch({FILE!r}, into=Path({str(folder)!r}), addresses=[{server.url + '/set'!r}])\n"
        "print(len(path.read_bytes()))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    assert server.half_sent.wait(30)
    time.sleep(0.3)  # for those that would not wait
    server.gate.set()
    answers = [process.communicate(timeout=60)[0] for process in processes]
    assert answers == [f"{len(BODY)}\n"] * 4
    assert server.requests == ["set/file.gz"]
    assert left(folder) == ["file.gz"]
