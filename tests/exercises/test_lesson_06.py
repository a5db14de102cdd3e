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
from ray.train import ReportedCheckpointStatus

from course.exercises import check, registry
from course.exercises.answers import Wrong
from verdicts import Runs, cases, replaced, solution

pytestmark = [pytest.mark.slow, pytest.mark.covers("course/exercises/", "lessons/checks/")]


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
        entry = {"status": SimpleNamespace(name=status), "metrics": metrics, "checkpoint": None}
        entries.append(SimpleNamespace(**entry))
    return entries


NO, ALL, SOME = ("COMMITTED", None), ("VALIDATED", "all"), ("VALIDATED", 1000)
SEVEN, THREE = (NO, NO, SOME, NO, NO, SOME, ALL), (NO, NO, ALL)


STATUSES = [
    (SEVEN, THREE, 1, "solved"),
    (SEVEN, THREE, 0, "is [0, 1, 2, 3, 4, 5, 6], and should count 1 to 7"),
    (SEVEN, (NO, NO, SOME), 1, "epoch 3 of 3 was validated on 1000 rows; it should be all"),
    ((NO, NO, SOME, NO, NO, SOME, NO), THREE, 1, "epoch 7 of 7 was not validated"),
    ((NO, NO, SOME, NO, NO, NO, ALL), THREE, 1, "epoch 6 of 7 was not validated"),
    ((NO, NO, SOME, NO, SOME, NO, ALL), THREE, 1, "epoch 5 of 7 was validated, and needs no"),
    ((SOME, NO, NO, SOME, NO, NO, ALL), THREE, 1, "epoch 1 of 7 was validated, and needs no"),
    ((NO, NO, ("VALIDATED", "default"), *SEVEN[3:]), THREE, 1, "without fn_kwargs"),
    ((NO, NO, ("VALIDATION_TIMEOUT", None), *SEVEN[3:]), THREE, 1, "the status VALIDATION_TIMEOUT"),
    ((NO, NO, ("VALIDATION_FAILED", None), *SEVEN[3:]), THREE, 1, "it must be a ValidationTaskConfig"),
    (THREE, THREE, 1, "6 checkpoints were reported in 7 and 3 epochs"),
]


@pytest.mark.each_change
@pytest.mark.parametrize("seven, three, first, verdict", STATUSES)
def test_not_after_every_epoch(seven, three, first, verdict, untrained, monkeypatch):
    result = SimpleNamespace(path="", filesystem=None, return_value={"wrong": [], "read": [[], []]})
    monkeypatch.setattr(lesson_06, "run_loop", lambda *args, **options: (result, []))
    entries = reported(*seven, first=first) + reported(*three, first=first)
    monkeypatch.setattr("labkit.train.reported_checkpoints", lambda *args: entries)
    assert verdict in repr(check("06-2", lambda config: 1))


@pytest.mark.each_change
def test_a_checkpoint_with_the_wrappers_names():
    entry = SimpleNamespace(status=SimpleNamespace(name="VALIDATED"), metrics={"epoch": 0, "wrapped": True})
    with pytest.raises(Wrong, match="begin with `module.`"):
        lesson_06._same_rows(entry, "all", 1)


def saved(model, epoch):
    folder = tempfile.mkdtemp()
    torch.save({"model": getattr(model, "module", model).state_dict(), "epoch": epoch}, f"{folder}/state.pt")
    return ray.train.Checkpoint.from_directory(folder)


def checkpoint_of(model, epoch):
    return saved(model, epoch) if ray.train.get_context().get_world_rank() == 0 else None


def gone_too_early(model, epoch):
    if ray.train.get_context().get_world_rank() != 0:
        return None
    with tempfile.TemporaryDirectory() as folder:
        return ray.train.Checkpoint.from_directory(folder)


DEALT = 'prepare_data_loader(DataLoader(config["train"], batch_size=config["batch_size"], shuffle=True))'
SET_EPOCH = "        loader.sampler.set_epoch(epoch)\n"
TRAINED = """        for x, y in loader:
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""

GIVEN = {
    "checkpoint_of": checkpoint_of,
    "gone_too_early": gone_too_early,
    "saved": saved,
    "train": torch.utils.data.TensorDataset(torch.rand(64, 1, 28, 28), torch.arange(64) % 10),
}


CHANGED = {
    "06-2": [
        ({}, "solved"),
        ({SET_EPOCH: ""}, "call loader.sampler.set_epoch(epoch)"),
        ({", shuffle=True": "", SET_EPOCH: ""}, "solved"),
        ({"elif epoch % 3 == 0": "elif epoch == 3"}, "epoch 6 of 7 was not validated"),
        ({TRAINED: ""}, 'no row of config["train"] was read'),
        ({'DataLoader(config["train"]': "DataLoader(train"}, 'no row of config["train"] was read'),
        ({'prepare_model(config["make_model"]())': 'config["make_model"]()'}, "rank 0 trained alone"),
        (
            {DEALT: DEALT.removeprefix("prepare_data_loader"), SET_EPOCH: ""},
            "both workers train on the same rows",
        ),
        ({'config["batch_size"]': "16"}, "a step uses 16 rows of each worker"),
        ({", timeout_s=60": ""}, "its ValidationTaskConfig has no timeout_s"),
        (
            {"CheckpointUploadMode.ASYNC": "CheckpointUploadMode.SYNC"},
            "epoch 1 of 7: report waits for the upload",
        ),
        ({"checkpoint_of(model": "saved(model"}, "both ranks attach a checkpoint"),
        ({"validation if checkpoint else False": "validation"}, "only rank 0 asks"),
        ({"checkpoint_of": "gone_too_early"}, "gone before its upload had ended"),
    ],
}


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(("exercise", "change", "verdict"), cases(CHANGED))
def test_a_run_that_a_check_starts(exercise, change, verdict):
    assert verdict in repr(check(exercise, *solution(exercise, change, **GIVEN)))


READ = [list(range(0, 128, 2)) * 3, list(range(1, 128, 2)) * 3]  # in three epochs


DEALT_ROWS = [
    (READ, "solved"),
    ([[], READ[1]], "no row of"),
    ([READ[0], READ[0]], "on the same rows"),
    ([READ[0][:-32], READ[1][:-32]], "the workers read 106 rows"),
    ([list(range(0, 60)) * 3, list(range(60, 120)) * 3], "the workers read 120 rows"),
    ([list(range(126, -1, -2)) * 3, READ[1]], "two epochs have the same order"),
]


@pytest.mark.each_change
@pytest.mark.parametrize("read, verdict", DEALT_ROWS)
def test_rows_are_dealt_to_the_workers(read, verdict):
    with pytest.raises(Wrong, match=verdict) if verdict != "solved" else contextlib.nullcontext():
        lesson_06._dealt(read, 3)


@pytest.mark.each_change
def test_weights_that_the_rows_do_not_lead_to():
    weights = lesson_06._one_process(32, READ)
    lesson_06._trained(weights, READ)
    for wrong, verdict in (
        (lesson_06._small_model().state_dict(), "nothing was trained"),
        ({name: weight + 0.1 for name, weight in weights.items()}, "is the optimizer as in train_async"),
        ({"other": torch.zeros(1)}, "not those of config"),
    ):
        with pytest.raises(Wrong, match=verdict):
            lesson_06._trained(wrong, READ)


RESULT = SimpleNamespace(best_checkpoints=[(None, {"val_accuracy": 0.7}), (None, {"val_accuracy": 0.9})])


def finds(best, worst, active=(False,)):
    """An answer that finds this on the best checkpoint, and this on the worst."""
    return Runs((best, active), (worst, active))


def accuracies(best, worst, **options):
    return finds({"val_accuracy": best}, {"val_accuracy": worst}, **options)


def best_of(checkpoints):
    validated = [entry for entry in checkpoints if entry.status == ReportedCheckpointStatus.VALIDATED]
    best = max(validated, key=lambda entry: entry.metrics["val_accuracy"], default=None)
    return best.checkpoint if best else None


def with_any_status(checkpoints):
    scored = [entry for entry in checkpoints if "val_accuracy" in entry.metrics]
    best = max(scored, key=lambda entry: entry.metrics["val_accuracy"], default=None)
    return best.checkpoint if best else None


def from_zero(checkpoints):
    best, checkpoint = 0, None
    for entry in checkpoints:
        if entry.status == ReportedCheckpointStatus.VALIDATED and entry.metrics["val_accuracy"] > best:
            best, checkpoint = entry.metrics["val_accuracy"], entry.checkpoint
    return checkpoint


ANSWERS = {
    "06-1": [
        ([inside, alongside], "solved"),
        ([inside, lambda n, t, v: n * t + v if v <= t else t + n * v], "solved"),
        ([lambda n, t, v: n * t, alongside], "training alone"),
        ([lambda n, t, v: n * t + v, alongside], "only one validation"),
        ([inside, lambda n, t, v: n * t], "when the training ends"),
        ([inside, lambda n, t, v: n * t + v], "queue"),
        ([inside, lambda n, t, v: t + n * v], "waits for the next checkpoint"),
        ([inside, inside], "nothing would overlap"),
        ([inside, lambda n, t, v: max(n * t, n * v)], "when the training ends"),
        ([inside, lambda n, t, v: n * max(t, v) + v], "the first validation waits for one epoch"),
    ],
    "06-3": [
        ([accuracies(0.9, 0.7), RESULT], "solved"),
        ([accuracies(0.9, 0.7, active=(True,)), RESULT], "dropout is still active"),
        ([accuracies(0.9, 0.7, active=()), RESULT], "has no dropout layer any more"),
        ([accuracies(0.9, 0.9), RESULT], "the same for two checkpoints"),
        ([accuracies(90.0, 70.0), RESULT], "from 0 to 1"),
        ([accuracies(0.1, 0.2), RESULT], "too low: are the checkpoint's weights loaded"),
        ([accuracies(0.95, 0.75), RESULT], "too high: does it use all validation rows?"),
        ([accuracies(np.float32(0.9), 0.7), RESULT], "a plain float is expected"),
        ([finds({"accuracy": 0.9}, {}), RESULT], '{"val_accuracy": …} is expected'),
        ([accuracies(0.9, 0.7), SimpleNamespace(best_checkpoints=[])], "no validated checkpoint"),
    ],
    "06-4": [
        ([best_of], "solved"),
        ([from_zero], "VALIDATED 0.0, VALIDATION_FAILED 0.3, best_of returns None"),
        ([with_any_status], "returns the one at place 1, and not the one at place 0"),
        ([lambda checkpoints: checkpoints[0]], "its `checkpoint` is expected"),
        ([lambda checkpoints: best_of(checkpoints) or checkpoints[0].checkpoint], "none is validated"),
        ([lambda checkpoints: checkpoints[-1].checkpoint], "place 2, and not the one at place 1"),
    ],
}


@pytest.mark.each_change
@pytest.mark.parametrize(("exercise", "answers", "verdict"), cases(ANSWERS))
def test_what_a_check_says(exercise, answers, verdict, monkeypatch):
    monkeypatch.setattr(lesson_06, "_validated", replaced)
    assert verdict in repr(check(exercise, *answers))


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))


def validation_rows():
    numbers = torch.Generator().manual_seed(1)
    labels = torch.arange(500) % 10
    return torch.rand(500, 1, 28, 28, generator=numbers) + labels.view(-1, 1, 1, 1) / 10, labels


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A result with the checkpoints of a model before and after its training."""
    model, (x, y), entries = make_model(), validation_rows(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(2):
        folder = tmp_path_factory.mktemp("checkpoint")
        torch.save({"model": model.state_dict()}, f"{folder}/state.pt")
        right = (model(x).argmax(dim=1) == y).float().mean().item()
        entries.append((ray.train.Checkpoint.from_directory(folder), {"val_accuracy": right}))
        for _ in range(100):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return SimpleNamespace(best_checkpoints=entries)


DROPOUT = "torch.nn.Sequential(torch.nn.Dropout(0.5), net).eval()"
VALIDATORS = [
    ({}, "solved"),
    ({".eval()": ""}, "dropout is still active"),
    ({DROPOUT: "net.eval()"}, "has no dropout layer any more"),
    ({"net.load_state_dict": "dict"}, "are the checkpoint's weights loaded"),
    (
        {"(model(x).argmax(dim=1) == y).float().mean().item()": "float(model(x).sum() * 0 + 0.948)"},
        "the same",
    ),
    ({"validation_rows()": "(rows[:100] for rows in validation_rows())"}, "on all rows of this checkpoint"),
]


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("change, verdict", VALIDATORS)
def test_a_validator_runs_on_two_checkpoints(change, verdict, trained):
    names = {"make_model": make_model, "validation_rows": validation_rows, "result": trained}
    answer, result = solution("06-3", change, **names)
    assert verdict in repr(check("06-3", answer, result))


def test_what_a_check_has_written_is_removed(lab, home):
    names = {"checkpoint_of": checkpoint_of, "gone_too_early": gone_too_early}
    assert check("06-2", *solution("06-2", **names))
    assert not list(home.glob("check-*"))
