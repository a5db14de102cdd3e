import json
import pickle

import pyarrow.fs
import pytest

from labkit.tune import snapshot as sweep_snapshot
from labkit.tune import whole_files

OTHERS = ("basic-variant-state-{}.json", "search_gen_state-{}.json", "callback-states-{}.pkl")
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
    """What Tune writes, in short; all but the first are pickled, whatever their names say."""
    (folder / f"experiment_state-{session}.json").write_text(json.dumps({"trials": trials}))
    for name in OTHERS:
        (folder / name.format(session)).write_bytes(pickle.dumps({"counter": trials}))


def known(folder, session):
    trials = json.loads((folder / f"experiment_state-{session}.json").read_text())["trials"]
    return [
        trials,
        *(pickle.loads((folder / name.format(session)).read_bytes())["counter"] for name in OTHERS),
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


@pytest.mark.parametrize("name", ["experiment_state-{}.json", *OTHERS])
@pytest.mark.parametrize("length", [0, 5])
def test_files_that_were_cut_off_come_back(files, staging, stored, name, length):
    written(staging, FIRST, 3)
    sweep_snapshot.Snapshots(files, str(stored)).keep(str(staging))
    written(stored, FIRST, 3)
    cut = stored / name.format(FIRST)
    cut.write_bytes(cut.read_bytes()[:length])
    assert not sweep_snapshot.is_whole(files, str(stored))
    assert sweep_snapshot.bring_back(files, str(stored))
    assert sweep_snapshot.is_whole(files, str(stored)) and known(stored, FIRST) == [3] * 4


def test_files_of_different_moments_are_made_one_again(files, staging, stored):
    """A searcher that has drawn five trials beside a list of three: two would never be run."""
    written(staging, FIRST, 3)
    sweep_snapshot.Snapshots(files, str(stored)).keep(str(staging))
    written(stored, FIRST, 3)
    (stored / OTHERS[0].format(FIRST)).write_bytes(pickle.dumps({"counter": 5}))
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


def test_what_tune_was_writing_in_the_moment_of_the_kill_is_nothing(files, staging, stored):
    written(stored, FIRST, 3)
    (stored / f".0f-tmp-search_gen_state-{FIRST}.json").write_bytes(b"\x80")
    assert sweep_snapshot.is_whole(files, str(stored))


def test_a_second_session_whose_searcher_had_written_nothing(files, staging, stored):
    written(staging, FIRST, 3)
    sweep_snapshot.Snapshots(files, str(stored)).keep(str(staging))
    (stored / f"experiment_state-{SECOND}.json").write_text(json.dumps({"trials": 3}))
    assert sweep_snapshot.bring_back(files, str(stored)) and known(stored, FIRST) == [3] * 4
