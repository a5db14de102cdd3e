"""The exercises of lesson 02: what is right, and what a likely mistake is told."""

import io

import numpy as np
import PIL.Image
import pytest

from labkit.exercises import check


def in_place(batch):
    batch["ink"] = batch["image"].mean(axis=(1, 2)) / 255
    return batch


def by_loop(batch):
    return {**batch, "ink": [image.mean() / 255 for image in batch["image"]]}


def stub(batch): ...


@pytest.mark.parametrize(
    "function, said",
    [
        (lambda batch: {**batch, "ink": batch["image"].mean(axis=(1, 2)) / 255}, "solved"),
        (in_place, "solved"),
        (by_loop, "solved"),
        (lambda batch: {**batch, "ink": batch["image"].mean(axis=(1, 2))}, "from 0 to 255"),
        (lambda batch: {**batch, "ink": batch["image"].mean() / 255}, "one number for the whole batch"),
        (lambda batch: {**batch, "ink": batch["image"].mean(axis=1) / 255}, "28 numbers"),
        (lambda batch: {"ink": batch["image"].mean(axis=(1, 2)) / 255}, "column 'image' is gone"),
        (lambda batch: {**batch, "image": 0, "ink": 0}, "column 'image'"),
        (lambda batch: batch["image"].mean(axis=(1, 2)) / 255, "a batch with the column `ink`"),
        (lambda batch: {**batch, "ink": 1 - batch["image"].mean(axis=(1, 2)) / 255}, "values differ"),
        (lambda batch: batch["pixels"], "raised KeyError"),
        (stub, "not attempted"),
    ],
)
def test_one_number_for_each_image(function, said):
    assert said in repr(check("02-1", function))


class Brighten:
    def __init__(self, load):
        self.table = load()

    def __call__(self, batch):
        return {**batch, "image": self.table[batch["image"]]}


class Lazy:
    def __init__(self, load):
        self.load, self.table = load, None

    def __call__(self, batch):
        if self.table is None:
            self.table = self.load()
        return {**batch, "image": self.table[batch["image"]]}


class EachTime(Lazy):
    def __call__(self, batch):
        return {**batch, "image": self.load()[batch["image"]]}


class WithoutLabels(Brighten):
    def __call__(self, batch):
        return {"image": self.table[batch["image"]]}


class Unchanged(Brighten):
    def __call__(self, batch):
        return batch


class NoReturn(Brighten):
    def __call__(self, batch):
        batch["image"] = self.table[batch["image"]]


class Stub:
    def __init__(self, load): ...

    def __call__(self, batch): ...


@pytest.mark.parametrize(
    "answer, said",
    [
        (Brighten, "solved"),
        (Lazy, "solved"),
        (EachTime, "called 3 times"),
        (WithoutLabels, "the whole batch is expected"),
        (Unchanged, "values differ"),
        (NoReturn, "returns nothing"),
        (lambda load: load, "a class is expected"),
        (Stub, "not attempted"),
    ],
)
def test_what_is_loaded_once(answer, said):
    assert said in repr(check("02-2", answer))


@pytest.mark.parametrize(
    "rows, lost, batches, said",
    [
        (333, 1, 6, "solved"),
        (1000 / 3, 1, 6, "whole rows"),
        (334, 1, 6, "1,002"),
        (333, 0, 6, "not all of them"),
        (333, 1, 5, "left out"),
        (333, 1, 333 / 64, "may be smaller"),
        (333, 1, 16, "reads all"),
        (333, ..., 6, "not attempted"),
    ],
)
def test_who_gets_how_much(rows, lost, batches, said):
    assert said in repr(check("02-3", rows, lost, batches))


def decoded(payload):
    return np.asarray(PIL.Image.open(io.BytesIO(payload)).convert("L"))


def noted(name, payload):
    try:
        image = decoded(payload)
        if image.shape != (28, 28):
            raise ValueError(image.shape)
        return {"name": name, "image": image, "error": ""}
    except Exception as error:
        return {"name": name, "image": np.zeros((28, 28), np.uint8), "error": repr(error)}


def any_size(name, payload):
    try:
        return {"name": name, "image": decoded(payload), "error": ""}
    except Exception as error:
        return {"name": name, "image": np.zeros((28, 28), np.uint8), "error": repr(error)}


def no_image(name, payload):
    row = noted(name, payload)
    return {**row, "image": None} if row["error"] else row


def error_itself(name, payload):
    row = noted(name, payload)
    return {**row, "error": ValueError(row["error"])} if row["error"] else row


@pytest.mark.parametrize(
    "function, said",
    [
        (noted, "solved"),
        (any_size, "an image of 10×12 pixels the image has the shape (12, 10)"),
        (no_image, "for a PNG that was cut off the image"),
        (error_itself, "a text is expected"),
        (
            lambda name, payload: {"name": name, "image": decoded(payload), "error": ""},
            "for a PNG that was cut",
        ),
        (lambda name, payload: {**noted(name, payload), "error": "bad"}, "a good image has the error"),
        (lambda name, payload: {**noted(name, payload), "error": ""}, "has no error"),
        (lambda name, payload: {**noted(name, payload), "name": "x"}, "the name is 'x'"),
        (lambda name, payload: noted(name, payload)["image"], "a dict with name, image and error"),
        (lambda name, payload: ..., "not attempted"),
    ],
)
def test_what_was_bad_is_noted(function, said):
    assert said in repr(check("02-4", function))
