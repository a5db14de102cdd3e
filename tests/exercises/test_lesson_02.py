"""The exercises of lesson 02: what is right, and what is said of a mistake. They run on a cluster."""

import io
import sys

import numpy as np
import PIL.Image
import pytest
from ray import cloudpickle

from labkit.exercises import check
from labs import _home, lab  # noqa: F401  in the place of the folder of conftest

pytestmark = pytest.mark.usefixtures("lab")
# Workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
LAB = {"nodes": 1, "cpus_per_node": 2}


def in_place(batch):
    batch["ink"] = batch["image"].mean(axis=(1, 2)) / 255
    return batch


def changes_the_image(batch):
    batch["image"] //= 2
    return {**batch, "ink": batch["image"].mean(axis=(1, 2)) / 255}


def stub(batch): ...


@pytest.mark.parametrize(
    "function, said",
    [
        (lambda batch: {**batch, "ink": batch["image"].mean(axis=(1, 2)) / 255}, "solved"),
        (in_place, "solved"),
        (lambda batch: {**batch, "ink": batch["image"].mean(axis=(1, 2))}, "from 0 to 255"),
        (lambda batch: {**batch, "ink": batch["image"].mean() / 255}, "one number for the whole batch"),
        (lambda batch: {**batch, "ink": batch["image"].mean(axis=1) / 255}, "28 numbers for each image"),
        (lambda batch: {"ink": batch["image"].mean(axis=(1, 2)) / 255}, "the column 'image' is gone"),
        (lambda batch: batch["image"].mean(axis=(1, 2)), "a batch with the column"),
        (changes_the_image, "the column 'image'"),
        (lambda batch: {**batch, "ink": batch["img"]}, "raised KeyError"),
        (stub, "not attempted"),
        (7, "a function is expected"),
    ],
)
def test_ink(function, said):
    assert said in repr(check("02-1", function))


class Once:
    def __init__(self, load):
        self.table = load()

    def __call__(self, batch):
        return {"image": self.table[batch["image"]]}


class EachTime(Once):
    def __init__(self, load):
        self.load = load

    def __call__(self, batch):
        return {"image": self.load()[batch["image"]]}


class Unchanged(Once):
    def __call__(self, batch):
        return batch


class Nothing(Once):
    def __call__(self, batch):
        self.table[batch["image"]]


class Blank:
    def __init__(self, load): ...

    def __call__(self, batch): ...


@pytest.mark.parametrize(
    "cls, said",
    [
        (Once, "solved"),
        (EachTime, "`load` was called 3 times"),
        (Unchanged, "values differ"),
        (Nothing, "a batch is expected"),
        (Blank, "not attempted"),
        (lambda load: load, "a class is expected"),
    ],
)
def test_loaded_once(cls, said):
    assert said in repr(check("02-2", cls))


def right(name, payload):
    try:
        image = np.asarray(PIL.Image.open(io.BytesIO(payload)).convert("L"))
        if image.shape != (28, 28):
            raise ValueError("another size")
        return {"name": name, "image": image, "error": ""}
    except Exception as error:
        return {"name": name, "image": np.zeros((28, 28), np.uint8), "error": repr(error)}


def any_size(name, payload):
    try:
        image = np.asarray(PIL.Image.open(io.BytesIO(payload)).convert("L"))
        return {"name": name, "image": image, "error": ""}
    except Exception as error:
        return {"name": name, "image": np.zeros((28, 28), np.uint8), "error": repr(error)}


def raises(name, payload):
    image = np.asarray(PIL.Image.open(io.BytesIO(payload)).convert("L"))
    return {"name": name, "image": image, "error": ""}


def always_an_error(name, payload):
    return right(name, payload) | {"error": "bad"}


def no_text(name, payload):
    row = right(name, payload)
    return row | {"error": None if row["error"] else ""}


@pytest.mark.parametrize(
    "function, said",
    [
        (right, "solved"),
        (any_size, "10×12"),
        (raises, "a PNG that was cut off"),
        (always_an_error, "a good image has the error"),
        (no_text, "a text is expected"),
        (lambda name, payload: {"name": name}, "a dict with name, image and error"),
        (lambda name, payload: ..., "not attempted"),
    ],
)
def test_note_what_was_bad(function, said):
    assert said in repr(check("02-3", function))


RIGHT = {
    "tasks that fetch": "more",
    "rows that are fetched again if a task fails": "less",
    "memory for a block": "less",
    "how often the table is loaded": "same",
}


@pytest.mark.parametrize(
    "answer, said",
    [
        (RIGHT, "solved"),
        (RIGHT | {"how often the table is loaded": "more"}, "loads it once"),
        (RIGHT | {"memory for a block": 3}, 'write "less"'),
        (RIGHT | {"memory for a block": ...}, "not attempted"),
        (7, "the dict"),
    ],
)
def test_what_would_change(answer, said):
    assert said in repr(check("02-4", answer))
