"""Tags, notes, and what deleting a run removes: its record, its checkpoints, nothing of another run."""

import json
from pathlib import Path

import pyarrow.fs
import pytest

from labkit import runs
from labkit.errors import RunError
from labkit.runs.index import find
from labkit.runs.record import FILE_NAME, RunRecord, folder_of, this_process

STARTED = "2026-01-31T12:00:00+00:00"


def write(home, run_id, name="own", state="finished", **fields):
    record = RunRecord(name=name, run_id=run_id, engine="e", state=state, started_at=STARTED, **fields)
    return record.write(folder_of(home, name, run_id)).parent


def checkpoints(path):
    (path / "checkpoint_0").mkdir(parents=True)
    (path / "checkpoint_0" / "state.pt").write_bytes(b"weights")
    return path


def test_tags_and_notes_are_found_again(tmp_path):
    path = write(tmp_path, "a") / FILE_NAME
    write(tmp_path, "b")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"energy_kwh": 3}))
    assert runs.tag("a", "paper", "good", home=tmp_path) == ["paper", "good"]
    assert runs.tag("a", "good", remove=True, home=tmp_path) == ["paper"]
    runs.note("a", "was too fast", home=tmp_path)
    assert list(runs.table(tmp_path, tag=["paper", "other"])["id"]) == ["a"]
    table = runs.table(tmp_path).set_index("id")
    assert (table.loc["a", "tags"], table.loc["a", "note"]) == ("paper", "was too fast")
    assert json.loads(path.read_text())["energy_kwh"] == 3  # of a newer version
    with pytest.raises(RunError, match="run_id='c'"):
        runs.tag("c", "x", home=tmp_path)


def test_delete_removes_the_record_and_the_checkpoints_and_says_so(tmp_path):
    kept = checkpoints(tmp_path / "models" / "kept")
    mine = checkpoints(tmp_path / "models" / "mine")
    folder = write(tmp_path, "a", storage_path=str(mine))
    other = write(tmp_path, "b", storage_path=str(kept))
    assert runs.delete("a", home=tmp_path).rows == [
        ("checkpoints", str(mine), "removed"),
        ("record", str(folder), "removed"),
    ]
    assert not mine.exists() and not folder.exists() and kept.exists() and other.exists()
    assert list(runs.table(tmp_path)["id"]) == ["b"]


def test_a_run_that_is_found_through_a_link_is_deleted_with_its_checkpoints(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    mine = checkpoints(tmp_path / "disk" / "models" / "mine")
    write(tmp_path / "disk", "a", storage_path=str(mine))
    (found,) = find(tmp_path / "home")
    assert runs.delete(found, home=tmp_path / "home").rows[0] == ("checkpoints", str(mine), "removed")
    assert not mine.exists()


def test_delete_removes_checkpoints_from_a_store(tmp_path):
    store = pyarrow.fs.SubTreeFileSystem(str(tmp_path / "store"), pyarrow.fs.LocalFileSystem())
    checkpoints(tmp_path / "store" / "lab" / "runs" / "own")
    write(tmp_path, "a", storage_path="lab/runs/own")
    with pytest.raises(RunError, match="filesystem=store.filesystem"):
        runs.delete("a", home=tmp_path)
    runs.delete("a", home=tmp_path, filesystem=store)
    assert [path.name for path in (tmp_path / "store" / "lab" / "runs").iterdir()] == []
    write(tmp_path, "b", storage_path="s3://lab")  # a whole bucket
    with pytest.raises(RunError):
        runs.delete("b", home=tmp_path, filesystem=store)
    assert (tmp_path / "store" / "lab").exists()


@pytest.mark.parametrize("theirs", ["models/own", "models/own/part", "models"])
def test_delete_keeps_what_another_run_uses(tmp_path, theirs):
    mine = checkpoints(tmp_path / "models" / "own")
    write(tmp_path, "a", storage_path=str(mine))
    write(tmp_path, "b", storage_path=str(tmp_path / theirs))
    (kept, _) = runs.delete("a", home=tmp_path).rows
    assert kept[2].startswith("kept: b") and (mine / "checkpoint_0" / "state.pt").exists()


def test_delete_keeps_a_folder_that_has_the_record_of_another_run(tmp_path):
    """A sweep may store its trials below ``runs/NAME``, next to its record."""
    write(tmp_path, "a", storage_path=str(tmp_path / "runs" / "own"))
    other = write(tmp_path, "b")
    runs.delete("a", home=tmp_path)
    assert other.exists() and list(runs.table(tmp_path)["id"]) == ["b"]


def test_delete_refuses_a_running_run_and_folders_elsewhere(tmp_path):
    home, elsewhere = tmp_path / "home", checkpoints(tmp_path / "elsewhere")
    running = write(home, "a", state="running", process=this_process())
    with pytest.raises(RunError, match="it is running"):
        runs.delete("a", home=home)
    (home / "link").symlink_to(elsewhere)
    for path in (elsewhere, home, home / ".." / "elsewhere", home / "link", f"file://{elsewhere}"):
        write(home, "c", name="other", storage_path=str(path))
        with pytest.raises(RunError, match="not below"):
            runs.delete("c", home=home)
    assert running.exists() and Path(elsewhere, "checkpoint_0", "state.pt").exists()
    runs.delete("c", home=home, checkpoints=False)
    assert elsewhere.exists() and not folder_of(home, "other", "c").exists()
