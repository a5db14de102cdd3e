"""Damaged inputs to what a learner may damage: a good value, or an error of the lab.

A seeded mutator damages good files: flipped bits, pieces that are cut off, left out, repeated or inserted.

    FUZZ_INPUTS=200 python -m pytest tests/test_damaged_inputs.py -n 0      # inputs
"""

import ast
import json
import os
import pickle
import random
import re
from pathlib import Path

import pytest

import records
from labkit import runs
from labkit.errors import Damaged, LabError
from labkit.local.lab import Lab
from labkit.local.object_server import read_keys, write_keys
from labkit.runs.record import FILE_NAME

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/runs/")]


INPUTS = int(os.environ.get("FUZZ_INPUTS", "25"))
PIECES = (b"\0", b"\xff", b"\x80\0\0\0", b"\x7f\xff\xff\xff", b"-1", b"NaN", b'"', b"\r\n", b",", b"[" * 9)


def damaged(good: bytes, draw: random.Random) -> bytes:
    """Some bytes of a file are others, are gone or are more."""
    for _ in range(draw.randint(1, 4)):
        begin, length = draw.randrange(len(good) + 1), draw.choice((0, 1, 8, 300, len(good)))
        piece = draw.choice((b"", draw.randbytes(length), draw.choice(PIECES)))
        good = good[:begin] + piece + good[begin + length :]
    return good


def read(home: Path) -> None:
    """Read all records of a home, or be refused in words."""
    try:
        str(runs.table(home=home))
        runs.latest(home=home, state=None)
    except LabError as error:
        assert error.attempt and error.fact and error.fix


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """The file of a good record."""
    fields = {"rows": 1437, "versions": {"torch": "2"}, "config": {"lr": 0.1, "model": {"width": 8}}}
    fields |= {"seconds": {"start": 2.5, "training": 5.5}, "seconds_per_epoch": [3.0, 2.5]}
    history = [{"epoch": 0, "loss": 0.3}, {"epoch": 1, "loss": 0.14}]
    return records.write(tmp_path, history=history, metrics={"loss": 0.14}, **fields) / FILE_NAME


@pytest.mark.filterwarnings("ignore")
def test_a_damaged_record_is_read_or_refused(record, tmp_path):
    assert len(runs.table(home=tmp_path)) == 1  # what is good is read
    good, draw = record.read_bytes(), random.Random(0)
    for number in range(INPUTS):
        record.write_bytes(damaged(good, draw))
        try:
            read(tmp_path)
        except Exception as error:
            raise AssertionError(f"input {number}") from error


RECORD = {"name": "03-torch", "run_id": "id-0", "engine": "x", "state": "finished"}
RECORD |= {"started_at": "2026-01-31T12:00:00"}


@pytest.mark.parametrize(
    "content",
    [
        {"history": [1], "note": [[]]},
        {"seconds": {"start": "x"}},
        {"run_id": "\ud800", "scaling": 3, "config": "abc"},
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_inputs_that_once_got_through(content, record, tmp_path):
    record.write_text(json.dumps(RECORD | content))
    read(tmp_path)


@pytest.mark.parametrize("keys", ["[labkit]\naws_secret_acc\xe1ss_key = x", "[labkit]\naws_access_key_id ="])
def test_keys_that_are_damaged(keys, tmp_path):
    path = tmp_path / "credentials"
    write_keys(path, "LABKEY", "secret")
    path.write_bytes(keys.encode("latin-1"))
    with pytest.raises(Damaged):
        read_keys(path)


@pytest.mark.parametrize("note", ["[" * 100_000, "", "[]", '{"port": []}', '{"address": 3}'])
def test_a_note_of_a_cluster_or_a_server_that_is_damaged(note, tmp_path):
    (Lab(tmp_path).make_folder() / "one.json").write_text(note)
    assert Lab(tmp_path).noted("one", {"port": int, "address": str}) == {}


class Hostile:
    """Its pickle writes a file when it is loaded."""

    def __init__(self, witness: Path) -> None:
        self._witness = witness

    def __reduce__(self) -> tuple:
        return Path.touch, (self._witness,)


def loads_of(path: Path) -> list[ast.Call]:
    """Return the calls of torch.load in a file, which is the only name that it has there."""
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"from torch\S* import .*\bload\b|import torch as", text), path
    tree = ast.parse(re.sub(r"(?m)^( *)[%!]", r"\1# ", text))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if ast.unparse(call.func) == "torch.load"]


@pytest.mark.parametrize("folder", ["labkit", "lessons", "notebooks/plain", "notebooks/own_experiment"])
def test_each_checkpoint_is_loaded_without_its_code(root, tmp_path, folder):
    """Each call gets a checkpoint with code in its pickle, with the options that it has."""
    import torch

    torch.save({"state": Hostile(tmp_path / "witness")}, tmp_path / "hostile.pt")
    for path in (root / folder).rglob("*.py"):
        for call in loads_of(path):
            options = [f"{option.arg}={ast.unparse(option.value)}" for option in call.keywords]
            code = f"torch.load({', '.join([repr(str(tmp_path / 'hostile.pt')), *options])})"
            with pytest.raises(pickle.UnpicklingError):
                eval(code, {"torch": torch})
    assert not (tmp_path / "witness").exists()
    torch.load(tmp_path / "hostile.pt", weights_only=False)
    assert (tmp_path / "witness").exists()  # the code would have run
