"""The state of a sweep in one file: what a restoration finds after a kill."""

import json
import pickle
from types import SimpleNamespace

import pyarrow.fs
import pytest

from labkit.tune.trials import SAVED, TunerPlan

SEARCHER = "search_gen_state-{}.json"  # pickled, whatever its name says
FIRST, SECOND = "2026-01-01_10-00-00", "2026-01-01_11-00-00"


@pytest.fixture(params=["local", "other"])
def plan(request, tmp_path):
    local = pyarrow.fs.LocalFileSystem()
    files = None if request.param == "local" else pyarrow.fs.SubTreeFileSystem("/", local)
    run = SimpleNamespace(storage_path=str(tmp_path), name="stored", storage_filesystem=files)
    return TunerPlan(print, {}, None, run)


@pytest.fixture
def staging(tmp_path):
    return tmp_path / "staging"


@pytest.fixture
def stored(tmp_path):
    return tmp_path / "stored"


def write(folder, session, trials):
    """What Tune writes, in short."""
    folder.mkdir(exist_ok=True)
    (folder / f"experiment_state-{session}.json").write_text(json.dumps({"trials": trials}))
    (folder / SEARCHER.format(session)).write_bytes(pickle.dumps({"counter": trials}))


def counts(folder, session):
    """How many trials the two files know of."""
    state = json.loads((folder / f"experiment_state-{session}.json").read_text())
    return state["trials"], pickle.loads((folder / SEARCHER.format(session)).read_bytes())["counter"]


def test_files_that_a_kill_cut_off_or_left_of_different_moments_are_restored(plan, staging, stored):
    """With a searcher that has drawn five trials next to a list of three, two would never run."""
    write(stored, FIRST, 3)
    for trials in (3, 4):
        write(staging, FIRST, trials)
        (staging / f".tmp-{FIRST}.json").write_bytes(b"\x80")  # Tune is writing it
        plan.save_state(staging)
    (stored / f"experiment_state-{FIRST}.json").write_text('{"tri')
    (stored / SEARCHER.format(FIRST)).write_bytes(pickle.dumps({"counter": 5}))
    plan.restore_state()
    assert counts(stored, FIRST) == (4, 4) and len(list(stored.iterdir())) == 3


def test_a_restored_run_saves_its_own_files(plan, staging, stored):
    """Tune puts the files of the run before next to its own."""
    write(staging, FIRST, 3)
    write(staging, SECOND, 4)
    write(stored, FIRST, 3)
    plan.save_state(staging)
    plan.restore_state()
    assert counts(stored, SECOND) == (4, 4) and counts(stored, FIRST) == (3, 3)


@pytest.mark.parametrize("damaged", [None, b"", b"\xff"])
def test_what_is_damaged_or_older_than_a_later_run_changes_nothing(plan, staging, stored, damaged):
    write(staging, FIRST, 3)
    write(stored, SECOND, 8)
    plan.save_state(staging)
    if damaged is not None:
        (stored / SAVED).write_bytes(damaged)
    plan.restore_state()
    TunerPlan(print, {}, None, SimpleNamespace(**vars(plan.run) | {"name": "nowhere"})).restore_state()
    assert counts(stored, SECOND) == (8, 8) and not list(stored.glob(f"*{FIRST}*"))
