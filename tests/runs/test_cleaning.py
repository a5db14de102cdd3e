"""What `labkit clean` shows and removes: what is old, and nothing that is used, marked or elsewhere."""

import io
import os
import sys
import time
from pathlib import Path

import pytest

from labkit import machine
from labkit.__main__ import main
from labkit.runs.record import RunRecord, folder_of, this_process
from labkit.system.process_registry import ProcessRegistry

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
STARTED = "2026-01-31T12:00:00+00:00"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    ProcessRegistry(tmp_path / "home").stop_all()


def file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"1234")
    return path


def run(home, run_id, name="03-torch", state="finished", **fields):
    record = RunRecord(name=name, run_id=run_id, engine="e", state=state, started_at=STARTED, **fields)
    return record.write(folder_of(home, name, run_id)).parent


def age(home, days=10):
    then = time.time() - days * 86_400
    for folder, folders, names in os.walk(home):
        for name in (*folders, *names):
            os.utime(Path(folder, name), (then, then), follow_symlinks=False)


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def clean(*options):
    return main(["clean", "--yes", *options])


def test_what_is_old_is_shown_and_removed_and_nothing_else(home, capsys):
    mine = ["exercises.json", "credentials", "notebook.ipynb", "datasets/mnist/images", "ray/starting"]
    mine += [
        "objects/credentials",
        "objects/rclone/digits/0.png",
        "objects/rclone/lab/data/x",
        "spark/java/bin",
    ]
    for path in mine:
        file(home / path)
    old = ["runs/05-tune/sweep/tuner.pkl", "runs/fit/checkpoint_0/state", "runs/fit/snapshot.json"]
    old += ["ray/t/session_1/logs/raylet.out", "ray/host/fork-01-2", "spark/spark-1/logs/driver.log"]
    old += [
        "objects/rclone/lab/.rclone_temp_1",
        "workspaces/default.json",
        f"processes/{machine.host_id()}/ray-1/7.json",
    ]
    for path in old:
        file(home / path)
    file(home / "objects/rclone/lab/runs/a/checkpoint_0/state")
    for run_id, path in (("a", "lab/runs/a"), ("b", "digits"), ("c", f"{home}/objects"), ("d", str(home))):
        run(home, run_id, storage_path=path)
    age(home)
    new = file(home / "runs/05-tune/later/tuner.pkl")
    assert clean("--older", "11d") == 0 and "nothing old" in capsys.readouterr().out
    assert clean() == 0
    shown = capsys.readouterr().out
    assert files(home) - {"runs/.index.json"} == {*mine, str(new.relative_to(home))}
    assert not (home / "runs" / "03-torch").exists()
    rows = [line.split("  ") for line in shown.splitlines()]
    assert {row[0] for row in rows[1:-2]} == {
        *("run", "checkpoints", "interrupted upload", "Ray session", "Spark session", "socket", "workspace"),
        "records of ended processes",
    }
    assert rows[-2][0].startswith("13 things") and rows[-1] == ["removed 13 of 13"]


def test_what_runs_or_is_marked_stays_with_its_checkpoints(home):
    for run_id, fields in {
        "running": {"state": "running", "process": this_process()},
        "tagged": {"tags": ["paper"]},
        "noted": {"note": "too fast"},
        "old": {},
    }.items():
        run(home, run_id, storage_path=f"lab/runs/{run_id}", **fields)
        file(home / "objects" / "rclone" / "lab" / "runs" / run_id / "state")
    path = file(home / "runs" / "elsewhere" / "sweep" / "state").parent
    run(home, "sweep", storage_path=str(path), tags=["paper"])
    age(home)
    assert clean() == 0
    left = {path.split("/")[-2] for path in files(home) if path.endswith(("state", "run_record.json"))}
    assert left == {"running", "tagged", "noted", "sweep"}
    assert path.exists()


def test_what_a_living_process_may_use_stays_whatever_the_age(home, tmp_path):
    run(home, "a", storage_path="lab/runs/a")
    run(home, "b")
    stored = file(home / "objects/rclone/lab/runs/a/state")
    upload = file(home / "objects/rclone/lab/.rclone_temp_1")
    age(home)
    registry = ProcessRegistry(home)
    registry.start(SLEEP, role="object server", group_id="store-1", log=tmp_path / "log")
    registry.acquire("ray-2")  # this process, whose cluster has ended
    file(home / "processes" / machine.host_id() / "ray-3/7.json")
    used = [file(home / "ray/t/session_2/logs/raylet.out"), file(home / "ray/host/fork-02-3")]
    assert clean("--older", "0h") == 0
    assert all(path.exists() for path in (*used, upload, stored))
    assert os.listdir(home / "runs" / "03-torch") == ["a"]  # b was written before the process started
    assert registry.groups() == ["ray-2", "ray-3", "store-1"]
    registry.release("ray-2")
    registry.stop("store-1")
    assert clean("--older", "0h") == 0
    assert not any(path.exists() for path in (*used, upload, stored)) and registry.groups() == []


def test_no_link_is_followed(home, tmp_path):
    outside = [file(tmp_path / "outside" / name / "state") for name in ("a", "b", "c", "d")]
    run(home, "a")
    (home / "runs/03-torch/a/link").symlink_to(outside[0].parent)
    (home / "runs/03-torch/b").symlink_to(outside[1].parent)
    (home / "runs/theirs").symlink_to(outside[2].parent.parent)
    (home / "objects" / "rclone").mkdir(parents=True)
    (home / "objects" / "rclone" / "lab").symlink_to(tmp_path / "outside")
    run(home, "stored", storage_path="lab/d")
    run(home, "above", storage_path="../../../outside/d")
    run(home, "absolute", storage_path=str(tmp_path / "outside" / "d"))
    run(home, "home", storage_path=str(home))
    kept = file(home / "exercises.json")
    age(tmp_path)
    assert clean() == 0
    assert all(path.exists() for path in (*outside, kept))
    assert set(os.listdir(home / "runs" / "03-torch")) == {"b", "stored", "above"}


def test_it_asks_and_takes_no_answer_for_a_no(home, monkeypatch, capsys):
    folder = run(home, "a")
    age(home)
    for answer, there in (("\n", True), ("no\n", True), ("", True), ("y\n", False)):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        assert main(["clean"]) == 0
        assert folder.exists() == there
    assert "remove all of it?" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["clean", "--older", "7"])
    assert "no age such as 7d" in capsys.readouterr().err


def test_what_cannot_be_removed_is_named(home, monkeypatch, capsys):
    folder = run(home, "a")
    age(home)

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("shutil.rmtree", refuse)  # root may remove everything
    assert clean() == 1
    said = capsys.readouterr()
    assert said.err == f"could not remove {folder}: Permission denied\n"
    assert said.out.splitlines()[-1] == "removed 0 of 1"
