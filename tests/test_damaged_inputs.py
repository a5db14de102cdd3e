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
from collections.abc import Callable
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
    """Some bytes of a file are others."""
    data = bytearray(good)
    for _ in range(draw.randint(1, 4)):
        at, length = draw.randrange(len(data) + 1), draw.choice((1, 2, 4, 8, 30, 300))
        match draw.randrange(6):
            case 0 | 1 if at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            case 2:
                del data[at:]
            case 3:
                del data[at : at + length]
            case 4:
                data[at:at] = draw.choice(PIECES)
            case 5:
                data[at : at + length] = draw.randbytes(length)
    return bytes(data)


def record(home: Path) -> tuple[Path, Callable[[], None]]:
    """Write a good record, and return its file and what reads it."""
    fields = {
        "rows": 1437,
        "seed": 3,
        "versions": {"torch": "2"},
        "config": {"lr": 0.1, "model": {"width": 8}},
    }
    fields |= {"seconds": {"start": 2.5, "training": 5.5}, "seconds_per_epoch": [3.0, 2.5]}
    history = [{"epoch": 0, "loss": 0.3}, {"epoch": 1, "loss": 0.14}]
    path = records.write(home, history=history, metrics={"loss": 0.14}, **fields) / FILE_NAME

    def read():
        str(runs.table(home=home))
        runs.latest(home=home, state=None)

    return path, read


@pytest.mark.filterwarnings("ignore")
def test_a_damaged_record_is_read_or_refused(tmp_path):
    path, read = record(tmp_path)
    read()  # what is good is read
    good, draw = path.read_bytes(), random.Random(0)
    for number in range(INPUTS):
        path.write_bytes(damaged(good, draw))
        try:
            read()
        except LabError as error:
            assert error.attempt and error.fact and error.fix
        except Exception as error:
            raise AssertionError(f"input {number}") from error


DEEP = "[" * 100_000
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
def test_inputs_that_once_got_through(content, tmp_path):
    path, read = record(tmp_path)
    path.write_text(json.dumps(RECORD | content))
    try:
        read()
    except LabError as error:
        assert error.attempt and error.fact and error.fix


@pytest.mark.parametrize("keys", ["[labkit]\naws_secret_acc\xe1ss_key = x", "[labkit]\naws_access_key_id ="])
def test_keys_that_are_damaged(keys, tmp_path):
    path = tmp_path / "credentials"
    write_keys(path, "LABKEY", "secret")
    path.write_bytes(keys.encode("latin-1"))
    with pytest.raises(Damaged):
        read_keys(path)


@pytest.mark.parametrize("note", [DEEP, "", "[]", '{"port": []}', '{"address": 3}'])
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
