"""What `labkit clean` shows and removes: what is old, and nothing that is used, marked or elsewhere."""

import io
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from labkit.__main__ import main
from labkit.local.lab import Lab
from labkit.runs.record import this_process
from records import write

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    Lab(tmp_path / "home").stop()


def file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"1234")
    return path


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
    mine = ["exercises.json", "credentials", "datasets/mnist/images", "objects/rclone/digits/0.png"]
    mine += ["objects/rclone/lab/data/x", "spark/java/bin", "runs/a file", "runs/no-record/x/state"]
    for path in mine:
        file(home / path)
    sessions = ["ray/t/session_2026/logs/raylet.out", "spark/spark-1/logs/driver.log", "public/public-1/a"]
    sessions += ["check-k2/checkpoint_0/state"]
    for path in (*sessions, "runs/own/sweep/state", "objects/rclone/lab/runs/a/checkpoint_0/state"):
        file(home / path)
    # Nothing but a run's own folder is taken for its checkpoints.
    places = ["lab/runs/a", "digits", "s3://lab/runs/gone", "../../../outside/x", str(home)]
    places += [f"{home}/{path}" for path in ("objects", "runs/own", "runs/own/sweep")]
    for number, path in enumerate(places):
        write(home, number, storage_path=path)
    age(home)
    outside = file(home.parent / "outside" / "x" / "state")
    age(home.parent)
    assert clean("--older", "11d") == 0 and "nothing old" in capsys.readouterr().out
    assert clean() == 0
    assert files(home) == set(mine) and outside.exists()
    shown = capsys.readouterr().out.splitlines()
    assert f"8 folders in {home}/runs/03-torch" in shown and shown[-1] == "removed 14 of 14"
    assert shown[-2].startswith("14 folders with ")


def test_sessions_of_a_home_with_a_long_path_are_elsewhere_and_are_removed(tmp_path, monkeypatch):
    home = tmp_path / ("long" * 10)
    monkeypatch.setenv("LABKIT_HOME", str(home))
    session = Lab(home).make_folder() / "session_2026"
    assert home not in session.parents
    try:
        file(session / "logs" / "raylet.out")
        age(session.parent)
        assert clean() == 0 and not session.exists()
    finally:
        shutil.rmtree(session.parents[1])


def test_what_runs_or_is_marked_stays_with_its_checkpoints(home):
    kept = {"running": {"state": "running", "process": this_process()}}
    kept |= {"noted": {"note": "too fast"}, "young": {}}
    for run_id, fields in {**kept, "old": {}}.items():
        write(home, run_id=run_id, storage_path=f"lab/runs/{run_id}", **fields)
        file(home / f"objects/rclone/lab/runs/{run_id}/state")
    write(home, storage_path="lab/runs/noted")
    age(home)
    file(home / "objects/rclone/lab/runs/young/checkpoint_1/state")
    assert clean() == 0
    assert {path.name for path in (home / "runs/03-torch").iterdir()} == set(kept)
    assert {path.name for path in (home / "objects/rclone/lab/runs").iterdir()} == set(kept)


def test_a_lab_that_runs_is_not_cleaned(home, tmp_path, capsys):
    folder = write(home)
    age(home)
    Lab(home).start(SLEEP, group="store", log=tmp_path / "log")
    assert clean() == 2 and "python -m labkit stop" in capsys.readouterr().err and folder.exists()
    assert main(["stop"]) == 0 and clean() == 0 and not folder.exists()


def test_it_asks_and_takes_no_answer_for_a_no(home, monkeypatch, capsys):
    folder = write(home)
    age(home)
    for answer, there in (("\n", True), ("no\n", True), ("", True), ("y\n", False)):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        assert main(["clean"]) == 0
        assert folder.exists() == there
    assert "remove all of it?" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["clean", "--older", "7"])
    assert "no age such as 7d" in capsys.readouterr().err
