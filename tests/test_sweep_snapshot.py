import json

import pyarrow.fs
import pytest

from labkit import sweep_snapshot, whole_files

FIRST, SECOND = "2026-01-01_10-00-00", "2026-01-01_11-00-00"


@pytest.fixture(params=["plain", "whole"])
def files(request):
    return pyarrow.fs.LocalFileSystem() if request.param == "plain" else whole_files.filesystem()


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


def written(folder, session, trials):
    """What Tune writes, in short."""
    (folder / f"experiment_state-{session}.json").write_text(json.dumps({"trials": trials}))
    (folder / f"basic-variant-state-{session}.json").write_text(json.dumps({"counter": trials}))
    (folder / f"search_gen_state-{session}.json").write_text(json.dumps({"counter": trials}))
    (folder / f"callback-states-{session}.pkl").write_bytes(bytes([trials]))


def known(folder, session):
    return [
        json.loads((folder / f"experiment_state-{session}.json").read_text())["trials"],
        json.loads((folder / f"basic-variant-state-{session}.json").read_text())["counter"],
        json.loads((folder / f"search_gen_state-{session}.json").read_text())["counter"],
        (folder / f"callback-states-{session}.pkl").read_bytes()[0],
    ]


def test_only_what_is_new_is_kept(files, staging, stored):
    snapshots = sweep_snapshot.Snapshots(files, str(stored))
    assert not snapshots.keep(str(staging))  # Tune has written nothing yet
    written(staging, FIRST, 3)
    assert snapshots.keep(str(staging)) and not snapshots.keep(str(staging))
    written(staging, FIRST, 44)
    assert snapshots.keep(str(staging))
    assert [one.name for one in stored.iterdir()] == [sweep_snapshot.NAME]
    snapshots.forget()
    snapshots.forget()
    assert list(stored.iterdir()) == []


@pytest.mark.parametrize("length", [0, 5])
def test_files_that_were_cut_off_come_back(files, staging, stored, length):
    written(staging, FIRST, 3)
    sweep_snapshot.Snapshots(files, str(stored)).keep(str(staging))
    written(stored, FIRST, 3)
    state = stored / f"experiment_state-{FIRST}.json"
    state.write_bytes(state.read_bytes()[:length])
    assert not sweep_snapshot.is_whole(files, str(stored))
    assert sweep_snapshot.bring_back(files, str(stored))
    assert sweep_snapshot.is_whole(files, str(stored)) and known(stored, FIRST) == [3] * 4


def test_files_of_different_moments_are_made_one_again(files, staging, stored):
    """A searcher that has drawn five trials beside a list of three: two would never be run."""
    written(staging, FIRST, 3)
    sweep_snapshot.Snapshots(files, str(stored)).keep(str(staging))
    written(stored, FIRST, 3)
    (stored / f"basic-variant-state-{FIRST}.json").write_text(json.dumps({"counter": 5}))
    assert sweep_snapshot.bring_back(files, str(stored)) and known(stored, FIRST) == [3] * 4


def test_a_second_session_that_was_killed_at_its_beginning(files, staging, stored):
    written(staging, FIRST, 3)
    sweep_snapshot.Snapshots(files, str(stored)).keep(str(staging))
    written(stored, FIRST, 3)
    written(stored, SECOND, 4)
    (stored / f"experiment_state-{SECOND}.json").write_text('{"tri')
    assert sweep_snapshot.bring_back(files, str(stored)) and known(stored, FIRST) == [3] * 4
    assert not list(stored.glob(f"*{SECOND}*")), "Tune would take the newest searcher"


def test_a_second_session_without_a_panel_is_not_undone(files, staging, stored):
    written(staging, FIRST, 3)
    sweep_snapshot.Snapshots(files, str(stored)).keep(str(staging))
    written(stored, SECOND, 8)
    assert not sweep_snapshot.bring_back(files, str(stored)) and known(stored, SECOND) == [8] * 4


def test_a_session_that_goes_on_keeps_its_own_files_alone(files, staging, stored):
    """Tune lays the files of the session before beside its own."""
    written(staging, FIRST, 3)
    written(staging, SECOND, 4)
    (staging / "tuner.pkl").write_bytes(b"x")
    sweep_snapshot.Snapshots(files, str(stored)).keep(str(staging))
    assert sweep_snapshot.bring_back(files, str(stored)) and known(stored, SECOND) == [4] * 4
    assert len(list(stored.iterdir())) == 5


def test_a_folder_without_any_of_it(files, stored):
    assert not sweep_snapshot.bring_back(files, str(stored))
    assert not sweep_snapshot.bring_back(files, str(stored / "nowhere"))
    assert not sweep_snapshot.is_whole(files, str(stored / "nowhere"))
    (stored / f"experiment_state-{FIRST}.json").write_text("{}")
    assert not sweep_snapshot.is_whole(files, str(stored))  # no searcher beside it
