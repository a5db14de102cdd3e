"""The exercises of lesson 06: what is said of a mistake."""

import contextlib
import sys
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest
import ray.train
import torch
from ray import cloudpickle
from ray.train import CheckpointUploadMode, ReportedCheckpointStatus

from labkit.exercises import check, registry
from labkit.exercises.answers import Wrong
from labkit.exercises.running import learners_errors
from verdicts import Runs, changes, replaced, verdicts

lesson_06 = registry.load("06")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this module


@pytest.fixture
def untrained(monkeypatch):
    """The answers of a test train nothing, and that is not what it is about."""
    monkeypatch.setattr(lesson_06, "_dealt", lambda *args: None)
    monkeypatch.setattr(lesson_06, "_trained", lambda *args: None)
    monkeypatch.setattr(lesson_06, "_saved_weights", lambda *args: {})
    monkeypatch.setattr(lesson_06, "_of_all_ranks", lambda value: [value, value])


def inside(n, t, v):
    return n * (t + v)


def alongside(n, t, v):
    return max(n * t + v, t + n * v)


def reported(*pairs, first=0):
    """The entries of a run: (status, rows) of each epoch, counted from `first`."""
    entries = []
    for epoch, (status, rows) in enumerate(pairs, first):
        metrics = {"epoch": epoch} | ({} if rows is None else {"rows": rows})
        one = {"status": SimpleNamespace(name=status), "metrics": metrics, "checkpoint": None}
        entries.append(SimpleNamespace(**one))
    return entries


NO, ALL, SOME = ("COMMITTED", None), ("VALIDATED", "all"), ("VALIDATED", 1000)
FIVE, THREE = (NO, NO, SOME, NO, ALL), (NO, NO, ALL)


@pytest.mark.parametrize(
    "five, three, first, said",
    [
        (FIVE, THREE, 0, "solved"),
        (FIVE, THREE, 1, "is [1, 2, 3, 4, 5], and should count 0 to 4"),
        (FIVE, (NO, NO, SOME), 0, "epoch 2 (of 0 to 2) was validated on 1000 rows; it should be all"),
        ((NO, NO, SOME, NO, NO), THREE, 0, "epoch 4 (of 0 to 4) was not validated"),
        ((SOME, NO, NO, SOME, ALL), THREE, 0, "epoch 0 (of 0 to 4) was validated, and needs no"),
        ((NO, NO, ("VALIDATED", "default"), NO, ALL), THREE, 0, "without fn_kwargs"),
        ((NO, NO, ("VALIDATION_TIMEOUT", None), NO, ALL), THREE, 0, "the status VALIDATION_TIMEOUT"),
        ((NO, NO, ("VALIDATION_FAILED", None), NO, ALL), THREE, 0, "it must be a ValidationTaskConfig"),
        (THREE, THREE, 0, "6 checkpoints were reported in 5 and 3 epochs"),
    ],
)
def test_not_after_every_epoch(five, three, first, said, untrained, monkeypatch):
    result = SimpleNamespace(path="", filesystem=None, return_value={"wrong": [], "read": [[], []]})
    monkeypatch.setattr(lesson_06, "run_loop", lambda *args, **options: (result, []))
    found = reported(*five, first=first) + reported(*three, first=first)
    monkeypatch.setattr("labkit.train.reported_checkpoints", lambda *args: found)
    assert said in repr(check("06-2", lambda config: 1))


def sparsely(timeout=9, mode=CheckpointUploadMode.ASYNC, ranks=(0,), asks=(0,)):
    """What matters of an answer to 06-2: the reports of a rank."""

    def train_sparsely(config):
        rank = ray.train.get_context().get_world_rank()
        for epoch in range(config["epochs"]):
            last = epoch == config["epochs"] - 1
            task = last and ray.train.ValidationTaskConfig(fn_kwargs={"rows": None}, timeout_s=timeout)
            options = {"checkpoint": "a folder" if rank in ranks else None, "checkpoint_upload_mode": mode}
            ray.train.report({"epoch": epoch}, validation=task if rank in asks else False, **options)

    return train_sparsely


@pytest.mark.parametrize(
    "answer, said",
    [
        (sparsely(), "solved"),
        (sparsely(timeout=None), "epoch 4 (of 0 to 4): its ValidationTaskConfig has no timeout_s"),
        (sparsely(mode=CheckpointUploadMode.SYNC), "epoch 0 (of 0 to 4): report waits for the upload"),
        (sparsely(ranks=(0, 1)), "both ranks attach a checkpoint"),
        (sparsely(asks=(0, 1)), "only rank 0 asks"),
    ],
)
def test_what_a_rank_reports(answer, said, untrained, monkeypatch):
    """Without the engine: rank 1 calls the loop, then rank 0."""
    committed = reported(*FIVE) + reported(*THREE)

    def report(metrics, checkpoint=None, validation=False, **options):
        if validation and not checkpoint:
            raise ValueError("Validation requires a checkpoint to be provided.")

    def run_loop(loop, config, name, remarks, **options):
        for rank in (1, 0):
            context = SimpleNamespace(get_world_rank=lambda rank=rank: rank)
            monkeypatch.setattr(ray.train, "get_context", lambda context=context: context)
            with learners_errors(name, remarks):
                found = loop(config)
        return SimpleNamespace(path="", filesystem=None, return_value=found), []

    monkeypatch.setattr(ray.train, "report", report)
    monkeypatch.setattr(lesson_06, "run_loop", run_loop)
    monkeypatch.setattr("labkit.train.reported_checkpoints", lambda *args: committed)
    assert said in repr(check("06-2", answer))


def test_a_checkpoint_with_the_wrappers_names():
    one = SimpleNamespace(status=SimpleNamespace(name="VALIDATED"), metrics={"epoch": 0, "wrapped": True})
    with pytest.raises(Wrong, match="begin with `module.`"):
        lesson_06._same_rows(one, "all", 1)


def checkpoint_of(model, epoch):
    if ray.train.get_context().get_world_rank() != 0:
        return None
    folder = tempfile.mkdtemp()
    torch.save({"model": getattr(model, "module", model).state_dict(), "epoch": epoch}, f"{folder}/state.pt")
    return ray.train.Checkpoint.from_directory(folder)


def gone_too_early(model, epoch):
    if ray.train.get_context().get_world_rank() != 0:
        return None
    with tempfile.TemporaryDirectory() as folder:
        return ray.train.Checkpoint.from_directory(folder)


DEALT = 'prepare_data_loader(DataLoader(config["train"], batch_size=config["batch_size"]))'
TRAINED = """        for x, y in loader:
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
CHANGED = {
    "06-2": [
        ({}, "solved"),
        ({'config["batch_size"]))': 'config["batch_size"], shuffle=True))'}, "solved"),
        ({TRAINED: ""}, 'no row of config["train"] was read'),
        ({'DataLoader(config["train"]': "DataLoader(train"}, 'no row of config["train"] was read'),
        ({'prepare_model(config["make_model"]())': 'config["make_model"]()'}, "rank 0 trained alone"),
        ({DEALT: DEALT.removeprefix("prepare_data_loader")}, "both workers train on the same rows"),
        ({'config["batch_size"]': "16"}, "a step uses 16 rows of each worker"),
        ({"checkpoint_of": "gone_too_early"}, "gone before its upload had ended"),
    ],
}

GIVEN = {
    "checkpoint_of": checkpoint_of,
    "gone_too_early": gone_too_early,
    "train": torch.utils.data.TensorDataset(torch.rand(64, 1, 28, 28), torch.arange(64) % 10),
}
test_a_run_that_a_check_starts = pytest.mark.usefixtures("lab")(changes(CHANGED, **GIVEN))


READ = [list(range(0, 128, 2)) * 3, list(range(1, 128, 2)) * 3]  # in three epochs


@pytest.mark.parametrize(
    "read, said",
    [
        (READ, None),
        ([[], READ[1]], "no row of"),
        ([READ[0], READ[0]], "on the same rows"),
        ([READ[0][:-32], READ[1][:-32]], "the workers read 106 rows"),
        ([list(range(0, 60)) * 3, list(range(60, 120)) * 3], "the workers read 120 rows"),
    ],
)
def test_rows_are_dealt_to_the_workers(read, said):
    with pytest.raises(Wrong, match=said) if said else contextlib.nullcontext():
        lesson_06._dealt(read, 3)


def test_weights_that_the_rows_do_not_lead_to():
    weights = lesson_06._one_process(32, READ)
    lesson_06._trained(weights, READ)
    for wrong, said in (
        (lesson_06._small_model().state_dict(), "nothing was trained"),
        ({name: one + 0.1 for name, one in weights.items()}, "is the optimizer as in train_async"),
        ({"other": torch.zeros(1)}, "not those of config"),
    ):
        with pytest.raises(Wrong, match=said):
            lesson_06._trained(wrong, READ)


RESULT = SimpleNamespace(checkpoint=None, metrics={"val_accuracy": 0.9})


def twice(found):
    return Runs(found, found)


def best_of(found):
    validated = [one for one in found if one.status == ReportedCheckpointStatus.VALIDATED]
    best = max(validated, key=lambda one: one.metrics["val_accuracy"], default=None)
    return best.checkpoint if best else None


def with_any_status(found):
    scored = [one for one in found if "val_accuracy" in one.metrics]
    best = max(scored, key=lambda one: one.metrics["val_accuracy"], default=None)
    return best.checkpoint if best else None


def from_zero(found):
    best, checkpoint = 0, None
    for one in found:
        if one.status == ReportedCheckpointStatus.VALIDATED and one.metrics["val_accuracy"] > best:
            best, checkpoint = one.metrics["val_accuracy"], one.checkpoint
    return checkpoint


SAID = {
    "06-1": [
        (inside, alongside, "solved"),
        (inside, lambda n, t, v: n * t + v if v <= t else t + n * v, "solved"),
        (lambda n, t, v: n * t, alongside, "training alone"),
        (lambda n, t, v: n * t + v, alongside, "only one validation"),
        (inside, lambda n, t, v: n * t, "when the training ends"),
        (inside, lambda n, t, v: n * t + v, "queue"),
        (inside, lambda n, t, v: t + n * v, "waits for the next checkpoint"),
        (inside, inside, "nothing would overlap"),
        (inside, lambda n, t, v: max(n * t, n * v), "when the training ends"),
        (inside, lambda n, t, v: n * max(t, v) + v, "the first validation waits for one epoch"),
    ],
    "06-3": [
        (twice({"val_accuracy": 0.9}), RESULT, "solved"),
        (Runs({"val_accuracy": 0.9}, {"val_accuracy": 0.8}), RESULT, "dropout is still active"),
        (twice({"val_accuracy": 90.0}), RESULT, "from 0 to 1"),
        (twice({"val_accuracy": 0.8}), RESULT, "too low: is dropout still active?"),
        (twice({"val_accuracy": 0.95}), RESULT, "too high: does it use all validation rows?"),
        (twice({"val_accuracy": np.float32(0.9)}), RESULT, "a plain float is expected"),
        (twice({"accuracy": 0.9}), RESULT, '{"val_accuracy": …} is expected'),
    ],
    "06-4": [
        (best_of, "solved"),
        (from_zero, "VALIDATED 0.0, VALIDATION_FAILED 0.3, best_of returns None"),
        (with_any_status, "returns the one at place 1, and not the one at place 0"),
        (lambda found: found[0], "its `checkpoint` is expected"),
        (lambda found: best_of(found) or found[0].checkpoint, "none is validated"),
        (lambda found: found[-1].checkpoint, "place 2, and not the one at place 1"),
    ],
}

test_what_a_check_says = verdicts(SAID, lesson_06, "in_a_task", replaced)
