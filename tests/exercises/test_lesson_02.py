"""The exercises of lesson 02: what is said of a mistake. They run on a cluster."""

import io
import sys

import numpy as np
import PIL.Image
import pytest
from ray import cloudpickle

from verdicts import verdicts

pytestmark = pytest.mark.usefixtures("lab")
# Workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def in_place(batch):
    batch["ink"] = batch["image"].mean(axis=(1, 2)) / 255
    return batch


def changes_the_image(batch):
    batch["image"] //= 2
    return {**batch, "ink": batch["image"].mean(axis=(1, 2)) / 255}


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


class Blank:
    def __init__(self, load): ...

    def __call__(self, batch): ...


def raises(name, payload):
    image = np.asarray(PIL.Image.open(io.BytesIO(payload)).convert("L"))
    return {"name": name, "image": image, "error": ""}


def any_size(name, payload):
    try:
        return raises(name, payload)
    except Exception as error:
        return {"name": name, "image": np.zeros((28, 28), np.uint8), "error": repr(error)}


def right(name, payload):
    row = any_size(name, payload)
    return row if row["image"].shape == (28, 28) else any_size(name, b"another size")


def always_an_error(name, payload):
    return right(name, payload) | {"error": "bad"}


SAID = {
    "02-1": [
        (in_place, "solved"),
        (lambda batch: {**batch, "ink": batch["image"].mean(axis=(1, 2))}, "from 0 to 255"),
        (lambda batch: {**batch, "ink": batch["image"].mean() / 255}, "one number for the whole batch"),
        (lambda batch: {**batch, "ink": batch["image"].mean(axis=1) / 255}, "28 numbers for each image"),
        (lambda batch: {"ink": batch["image"].mean(axis=(1, 2)) / 255}, "the column 'image' is gone"),
        (lambda batch: batch["image"].mean(axis=(1, 2)), "a batch with the column"),
        (changes_the_image, "the column 'image'"),
    ],
    "02-2": [
        (EachTime, "`load` was called 3 times"),
        (Unchanged, "values differ"),
        (Blank, "not attempted"),
    ],
    "02-3": [
        (any_size, "10×12"),
        (raises, "a PNG that was cut off"),
        (always_an_error, "a good image has the error"),
        (lambda name, payload: {"name": name}, "a dict with name, image and error"),
    ],
}

test_what_a_check_says = verdicts(SAID)
