"""The state of a sweep in one file: what a restoration finds after a kill."""

import json
import pickle
import time

import pyarrow.fs
import pytest

from labkit.tune import saved

SEARCHER = "search_gen_state-{}.json"  # pickled, whatever its name says
FIRST, SECOND = "2026-01-01_10-00-00", "2026-01-01_11-00-00"


@pytest.fixture(params=["local", "other"])
def files(request):
    local = pyarrow.fs.LocalFileSystem()
    return local if request.param == "local" else pyarrow.fs.SubTreeFileSystem("/", local)


@pytest.fixture
def staging(tmp_path):
    folder = tmp_path / "staging"
    folder.mkdir()
    return folder


@pytest.fixture
def stored(tmp_path):
    folder = tmp_path / "stored"
    folder.mkdir()
    return folder


def write(folder, session, trials):
    """What Tune writes, in short."""
    time.sleep(0.01)  # so that files have different times
    (folder / f"experiment_state-{session}.json").write_text(json.dumps({"trials": trials}))
    (folder / SEARCHER.format(session)).write_bytes(pickle.dumps({"counter": trials}))


def known(folder, session):
    """How many trials the two files know of."""
    state = json.loads((folder / f"experiment_state-{session}.json").read_text())
    return state["trials"], pickle.loads((folder / SEARCHER.format(session)).read_bytes())["counter"]


@pytest.mark.parametrize("name", ["experiment_state-{}.json", SEARCHER])
@pytest.mark.parametrize("length", [0, 5])
def test_files_that_a_kill_cut_off_are_restored(files, staging, stored, name, length):
    write(staging, FIRST, 3)
    (staging / f".tmp-{FIRST}.json").write_bytes(b"\x80")  # Tune is writing it
    saved.save(files, str(stored), staging)
    write(stored, FIRST, 3)
    cut = stored / name.format(FIRST)
    cut.write_bytes(cut.read_bytes()[:length])
    saved.restore(files, str(stored))
    assert saved.is_valid(files, str(stored)) and known(stored, FIRST) == (3, 3)
    assert len(list(stored.iterdir())) == 3


def test_the_newest_state_replaces_files_of_different_moments(files, staging, stored):
    """With a searcher that has drawn five trials next to a list of three, two would never run."""
    for trials in (3, 4):
        write(staging, FIRST, trials)
        saved.save(files, str(stored), staging)
    write(stored, FIRST, 3)
    (stored / SEARCHER.format(FIRST)).write_bytes(pickle.dumps({"counter": 5}))
    saved.restore(files, str(stored))
    assert known(stored, FIRST) == (4, 4)


def test_a_restored_run_saves_its_own_files(files, staging, stored):
    """Tune puts the files of the run before next to its own."""
    write(staging, FIRST, 3)
    saved.save(files, str(stored), staging)
    write(staging, SECOND, 4)
    saved.save(files, str(stored), staging)
    write(stored, FIRST, 3)
    saved.restore(files, str(stored))
    assert known(stored, SECOND) == (4, 4) and known(stored, FIRST) == (3, 3)


@pytest.mark.parametrize("restored", [1, 2])
def test_a_clock_that_was_set_back_does_not_bring_back_the_older_state(files, staging, stored, restored):
    """The end of summer time: the later session has the name that sorts first, and Tune reads the last."""
    write(staging, SECOND, 3)
    saved.save(files, str(stored), staging)
    for trials in range(4, 4 + restored):
        write(staging, FIRST, trials)
        saved.save(files, str(stored), staging)
    write(stored, SECOND, 3)
    write(stored, FIRST, 4)
    saved.restore(files, str(stored))
    newest = max(saved.states(files, str(stored))).removeprefix("experiment_state-").removesuffix(".json")
    assert known(stored, newest) == (3 + restored, 3 + restored)


def test_a_state_that_version_0_1_saved(files, staging, stored):
    write(staging, SECOND, 4)
    old = {path.name: path.read_bytes().decode("latin-1") for path in staging.iterdir()}
    (stored / saved.NAME).write_text(json.dumps(old))
    write(stored, FIRST, 3)
    saved.restore(files, str(stored))
    assert known(stored, SECOND) == (4, 4)


def test_a_later_run_without_a_panel_is_not_undone(files, staging, stored):
    write(staging, FIRST, 3)
    saved.save(files, str(stored), staging)
    write(stored, SECOND, 8)
    saved.restore(files, str(stored))
    assert known(stored, SECOND) == (8, 8) and not list(stored.glob(f"*{FIRST}*"))


def test_a_folder_without_a_saved_state(files, stored):
    for folder in (stored, stored / "nowhere"):
        saved.restore(files, str(folder))
        assert not saved.is_valid(files, str(folder))
    write(stored, FIRST, 3)
    saved.restore(files, str(stored))
    assert known(stored, FIRST) == (3, 3) and saved.is_valid(files, str(stored))


@pytest.mark.parametrize(
    "content", [b"\xff", b"[]", b"{}", b'{"experiment_state-2026.json": "{}", "../outside": "x"}']
)
def test_a_saved_state_that_was_damaged_writes_nothing_elsewhere(files, stored, content):
    (stored / saved.NAME).write_bytes(content)
    saved.restore(files, str(stored))
    assert not (stored.parent / "outside").exists()
    assert saved.is_valid(files, str(stored)) == (b"experiment_state" in content)
