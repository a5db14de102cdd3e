"""The exercises of lesson 06: what is said of a mistake."""

import sys
import tempfile
from types import SimpleNamespace

import pytest
import ray.train
import torch
from ray import cloudpickle

from course.exercises import check
from verdicts import checks, solution

pytestmark = [pytest.mark.slow, pytest.mark.covers("course/exercises/", "lessons/checks/")]


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this module


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


MODEL = 'config["make_model"]()'
DEALT = 'prepare_data_loader(DataLoader(config["train"], batch_size=config["batch_size"], shuffle=True))'
SET_EPOCH = "        loader.sampler.set_epoch(epoch)\n"
TRAINED = """        for x, y in loader:
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""

GIVEN = {
    "SimpleNamespace": SimpleNamespace,
    "checkpoint_of": checkpoint_of,
    "gone_too_early": gone_too_early,
    "saved": saved,
    "train": torch.utils.data.TensorDataset(torch.rand(64, 1, 28, 28), torch.arange(64) % 10),
}


CHANGED = {
    "06-2": [
        ({'{"epoch": epoch}': '{"epoch": epoch - 1}'}, "is [0, 1, 2, 3, 4, 5, 6], and should count 1 to 7"),
        ({'["epochs"] + 1)': '["epochs"])'}, "8 checkpoints were reported in 7 and 3 epochs"),
        ({'"rows": None': '"rows": 1000'}, "epoch 7 of 7 was validated on 1000 rows; it should be all"),
        ({'epoch == config["epochs"]': "False"}, "epoch 7 of 7 was not validated"),
        ({"epoch % 3 == 0": "epoch == 3"}, "epoch 6 of 7 was not validated"),
        ({"epoch % 3 == 0": "epoch % 3 == 1"}, "epoch 1 of 7 was validated, and needs no"),
        ({'fn_kwargs={"rows": 1000}, ': ""}, "without fn_kwargs"),
        ({'"rows": 1000': '"images": 1000'}, "it must be a ValidationTaskConfig"),
        ({"timeout_s=60": "timeout_s=0.01"}, "the status VALIDATION_TIMEOUT"),
        ({SET_EPOCH: ""}, "call loader.sampler.set_epoch(epoch)"),
        ({", shuffle=True": "", SET_EPOCH: ""}, "solved"),
        ({TRAINED: ""}, 'no row of config["train"] was read'),
        ({'DataLoader(config["train"]': "DataLoader(train"}, 'no row of config["train"] was read'),
        ({f"prepare_model({MODEL})": MODEL}, "rank 0 trained alone"),
        (
            {DEALT: DEALT.removeprefix("prepare_data_loader"), SET_EPOCH: ""},
            "both workers train on the same rows",
        ),
        (
            {'config["train"], batch': 'torch.utils.data.Subset(config["train"], range(120)), batch'},
            "the workers read 120 rows",
        ),
        ({"            optimizer.step()\n": ""}, "nothing was trained"),
        ({"momentum=0.9": "momentum=0.5"}, "is the optimizer as in train_async"),
        ({MODEL: f"torch.nn.Sequential({MODEL})"}, "not those of config"),
        ({"checkpoint_of(model": "checkpoint_of(SimpleNamespace(module=model)"}, "begin with `module.`"),
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


test_a_run_that_a_check_starts = pytest.mark.usefixtures("lab")(checks(CHANGED, **GIVEN))


BOTH, OUTSIDE = "n * (t + v)", "n * t + v if v <= t else t + n * v"
CHOSEN = "best.checkpoint if best else None"


ANSWERS = {
    "06-1": [
        ({OUTSIDE: "max(n * t + v, t + n * v)"}, "solved"),
        ({BOTH: "n * t"}, "training alone"),
        ({BOTH: "n * t + v"}, "only one validation"),
        ({OUTSIDE: "n * t"}, "when the training ends"),
        ({OUTSIDE: "n * t + v"}, "queue"),
        ({OUTSIDE: "t + n * v"}, "waits for the next checkpoint"),
        ({OUTSIDE: BOTH}, "nothing would overlap"),
        ({OUTSIDE: "n * max(t, v) + v"}, "the first validation waits for one epoch"),
    ],
    "06-3": [
        ([print, SimpleNamespace(best_checkpoints=[])], "no validated checkpoint"),
    ],
    "06-4": [
        ({"if best else": 'if best and best.metrics["val_accuracy"] else'}, "best_of returns None"),
        (
            {"one.status == ReportedCheckpointStatus.VALIDATED": '"val_accuracy" in one.metrics'},
            "returns the one at place 1, and not the one at place 0",
        ),
        ({CHOSEN: "known[0]"}, "its `checkpoint` is expected"),
        ({"else None": "else known[0].checkpoint"}, "none is validated"),
        ({CHOSEN: "known[-1].checkpoint"}, "place 2, and not the one at place 1"),
    ],
}


test_what_a_check_says = pytest.mark.each_change(checks(ANSWERS))


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
    ({".eval()": ""}, "dropout is still active"),
    ({DROPOUT: "net.eval()"}, "has no dropout layer any more"),
    ({"net.load_state_dict": "dict"}, "are the checkpoint's weights loaded"),
    ({".item()": ".item() * 100"}, "from 0 to 1"),
    ({".item()": ""}, "a plain float is expected"),
    ({'"val_accuracy"': '"accuracy"'}, '{"val_accuracy": …} is expected'),
    (
        {"(model(x).argmax(dim=1) == y).float().mean().item()": "float(model(x).sum() * 0 + 0.948)"},
        "the same",
    ),
    ({"validation_rows()": "large and validation_rows()"}, "2.0 MB: it takes data of this notebook along"),
    ({"validation_rows()": "(rows[:100] for rows in validation_rows())"}, "on all rows of this checkpoint"),
]


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("change, verdict", VALIDATORS)
def test_a_validator_runs_on_two_checkpoints(change, verdict, trained):
    given = {"make_model": make_model, "validation_rows": validation_rows, "large": bytes(2_000_000)}
    assert verdict in repr(check("06-3", *solution("06-3", change, result=trained, **given)))


def test_what_a_check_has_written_is_removed(lab, home):
    assert check("06-2", *solution("06-2", **GIVEN))
    assert not list(home.glob("check-*"))
