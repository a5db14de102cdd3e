"""Damaged files that a learner can have: each is read, or refused with an error of the lab.

A seeded mutator flips bits and cuts off, leaves out, repeats or inserts pieces of good files; in a record it
also changes the types of values.

    FUZZ_INPUTS=200 python -m pytest tests/test_damaged_inputs.py -n 0      # inputs for each kind of file
"""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

from labkit import datasets, runs
from labkit.errors import LabError
from labkit.models.torch import load_state, save_state
from labkit.runs.record import RunRecord, folder_of

INPUTS = int(os.environ.get("FUZZ_INPUTS", "25"))
RANDOM = np.random.default_rng(0)
ODD = (None, True, -1, 2.5, float("nan"), 10**400, "", "x" * 5000, "../../outside", "\ud800", [], {"": None})
PIECES = (b"\0", b"\xff", b"\x7f\xff\xff\xff", b"../", b"-1", b"NaN", b'"', b"\r\n", b",", b"[" * 9)


def damaged(good: bytes, draw: random.Random) -> bytes:
    """Some bytes of a file are others."""
    data = bytearray(good)
    for _ in range(draw.randint(1, 4)):
        at, length = draw.randrange(len(data) + 1), draw.choice((1, 4, 30, 300))
        match draw.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            case 1:
                del data[at:]
            case 2:
                del data[at : at + length]
            case 3:
                data[at:at] = data[at : at + length] * draw.choice((1, 50))
            case 4:
                data[at:at] = draw.choice(PIECES)
            case _:
                data[at : at + length] = draw.randbytes(length)
    return bytes(data)


def other_types(good: bytes, draw: random.Random) -> bytes:
    """Some values of a file of JSON are of another type, or missing."""
    content = json.loads(good)
    for _ in range(draw.randint(1, 3)):
        place = content
        while isinstance(inner := place[key := draw.choice(sorted(place))], dict) and inner:
            place = inner
        if draw.random() < 0.8:
            place[key] = draw.choice(ODD)
        elif len(place) > 1:
            del place[key]
    return json.dumps(content).encode()


# Each is a function of an empty folder: it writes good files, and returns them and what reads them.


def images(folder: Path) -> tuple[list[Path], Callable]:
    paths = [folder / name for name in ("cat/a.png", "cat/b.jpg", "dog/c.png", "dog/d.jpeg")]
    for path, mode in zip(paths, ("RGB", "RGB", "P", "L"), strict=True):
        path.parent.mkdir(exist_ok=True)
        pixels = Image.fromarray(RANDOM.integers(0, 255, (9, 9, 3), np.uint8)).convert(mode)
        pixels.save(path, exif=Image.Exif())
    return paths, lambda: own(datasets.from_folder(folder, size=(8, 8), test=0.0))


def table(folder: Path) -> tuple[list[Path], Callable]:
    columns = {"size": RANDOM.normal(size=50), "colour": ["red", "blü"] * 25, "price": 1.5}
    pandas.DataFrame(columns).to_csv(path := folder / "flats.csv", index=False)
    named = {"target": "price", "categories": ["colour"], "test": 0.0}
    return [path], lambda: own(datasets.from_table(path, **named))


def own(found: Any) -> None:
    x, y = found.load("train")
    assert len(x) == len(y) > 0 and found.fingerprint and found._repr_html_()


def checkpoint(folder: Path) -> tuple[list[Path], Callable]:
    def model():
        layers = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
        optimizer = torch.optim.Adam(layers.parameters())
        layers(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        return layers, optimizer

    def read():
        layers, optimizer = model()
        assert type(load_state(folder, layers, optimizer)["epoch"]) is int

    return [save_state(folder, *model(), epoch=3)], read


RECORD = {
    "name": "03-torch",
    "run_id": "id-1",
    "engine": "Ray Train",
    "state": "finished",
    "started_at": "2026-01-31T12:00:00",
}


def record(folder: Path) -> tuple[list[Path], Callable]:
    for number in range(2):
        more = {"run_id": f"id-{number}", "started_at": f"2026-01-3{number}T12:00:00+00:00", "seed": number}
        more |= {"config": {"lr": 0.1 * number, "model": {"width": 8}}, "metrics": {"loss": 0.14}}
        more |= {"history": [{"epoch": 0, "loss": 0.3}], "seconds": {"start": 2.5}, "process": {"pid": 1}}
        made = RunRecord(**(RECORD | more))
        path = made.write(folder_of(folder, made.name, made.run_id))

    def read():
        for view in (
            lambda: str(runs.table(folder)),
            lambda: runs.latest(home=folder, state=None),
            lambda: runs.best("loss", folder, mode="min", state=None),
            lambda: repr(runs.compare("id-0", "id-1", folder)),
        ):
            try:
                view()
            except LabError as error:
                assert error.attempt and error.fact and error.fix

    return [path], read


@pytest.mark.parametrize("kind", [images, table, checkpoint, record])
@pytest.mark.filterwarnings("ignore")
def test_a_damaged_file_is_read_or_refused(kind, tmp_path):
    draw, outside = random.Random(kind.__name__), tmp_path / "outside"
    folder = tmp_path / "home" / "own"
    folder.mkdir(parents=True)
    paths, read = kind(folder)
    read()
    good = {path: path.read_bytes() for path in paths}
    for number in range(INPUTS):
        for path, content in good.items():
            path.write_bytes(content)
        path = draw.choice(paths)
        change = other_types if path.suffix == ".json" and draw.random() < 0.8 else damaged
        path.write_bytes(content := change(good[path], draw))
        try:
            read()
        except LabError as error:
            assert error.attempt and error.fact and error.fix
        except Exception as error:
            # `load_state` documents these for a file of another model.
            known = kind is checkpoint and isinstance(error, (RuntimeError, ValueError))
            assert known and not isinstance(error, UnicodeError), f"input {number}: {content[:300]!r}"
    assert not outside.exists()


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        json.dumps(RECORD | {"history": [1], "tags": [[]]}),
        json.dumps(RECORD | {"seconds": {"start": "x"}, "code": 3}),
        json.dumps(RECORD | {"rows": 10**400, "process": {"pid": []}}),
        json.dumps(RECORD | {"started_at": "9999-12-31T23:59:59-12:00"}),
        json.dumps(RECORD | {"run_id": "\ud800", "scaling": 3, "config": "abc"}),
        json.dumps(RECORD | {"storage_path": {}, "checkpoint": []}),
    ],
)
def test_records_that_once_broke_a_view(content, tmp_path):
    (path,), read = record(tmp_path)
    path.write_text(content)
    read()
