"""The exercises of lesson 02: what is said of a mistake. They run on a cluster."""

import io
import sys

import numpy as np
import PIL.Image
import pytest
from ray import cloudpickle

from course.exercises import check
from verdicts import verdicts

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("lab")]
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


class WithoutTheTable(Once):
    def __call__(self, batch):
        return {"image": 255 - batch["image"]}


class WithATableOfItsOwn:
    def __init__(self, load):
        load()
        self.table = np.arange(255, -1, -1, dtype=np.uint8)

    def __call__(self, batch):
        return {"image": self.table[batch["image"]]}


class AtTheFirstBatch(EachTime):
    table = None

    def __call__(self, batch):
        if self.table is None:
            self.table = self.load()
        return {"image": self.table[batch["image"]]}


class Blank:
    def __init__(self, load): ...

    def __call__(self, batch): ...


def zeros(name, why):
    return {"name": name, "image": np.zeros((28, 28), np.uint8), "error": why}


def raises(name, payload):
    image = np.asarray(PIL.Image.open(io.BytesIO(payload)).convert("L"))
    return {"name": name, "image": image, "error": ""}


def any_size(name, payload):
    try:
        return raises(name, payload)
    except Exception as error:
        return zeros(name, repr(error))


def right(name, payload):
    row = any_size(name, payload)
    return row if row["image"].shape == (28, 28) else zeros(name, "another size")


def some_errors(*kinds):
    def decode_or_note(name, payload):
        try:
            row = raises(name, payload)
        except kinds as error:
            return zeros(name, repr(error))
        return row if row["image"].shape == (28, 28) else zeros(name, "another size")

    return decode_or_note


def of_784_pixels(name, payload):
    row = any_size(name, payload)
    return row if row["image"].size == 784 else zeros(name, "another size")


def in_any_mode(change):
    """What an answer makes of an image whose mode it doesn't look at."""

    def decode_or_note(name, payload):
        try:
            image = change(np.asarray(PIL.Image.open(io.BytesIO(payload))))
        except Exception as error:
            return zeros(name, repr(error))
        if image.shape != (28, 28):
            return zeros(name, "another size")
        return {"name": name, "image": image, "error": ""}

    return decode_or_note


def black_and_white(image):
    return image.astype(np.uint8) * 255 if image.dtype == bool else image


def grey_only(name, payload):
    """Right as well: it notes what isn't grey."""
    try:
        image = PIL.Image.open(io.BytesIO(payload))
        if image.mode != "L" or image.size != (28, 28):
            raise ValueError(image.mode)
        return {"name": name, "image": np.asarray(image), "error": ""}
    except Exception as error:
        return zeros(name, repr(error))


def always_an_error(name, payload):
    return right(name, payload) | {"error": "bad"}


SAID = """
02-1
  in_place => solved
  lambda batch: {**batch, "ink": batch["image"].mean(axis=(1, 2))} => from 0 to 255
  lambda batch: {**batch, "ink": batch["image"].mean() / 255} => one number for the whole batch
  lambda batch: {**batch, "ink": batch["image"].mean(axis=1) / 255} => 28 numbers for each image
  lambda batch: {"ink": batch["image"].mean(axis=(1, 2)) / 255} => the column 'image' is gone
  lambda batch: batch["image"].mean(axis=(1, 2)) => a batch with the column
  changes_the_image => the column 'image'
02-2
  Once => solved
  AtTheFirstBatch => solved
  EachTime => `load` was called 3 times
  WithoutTheTable => not with the table that `load` returns
  WithATableOfItsOwn => not with the table that `load` returns
  Unchanged => values differ
  Blank => not attempted
02-3
  right => solved
  grey_only => solved
  some_errors(Exception) => solved
  any_size => 10×12
  of_784_pixels => for an image of 56×14 pixels the image has the shape (14, 56)
  raises => a PNG that was cut off
  some_errors(OSError, ValueError) => interrupted by a damaged byte: broken PNG file
  some_errors(OSError, ValueError, SyntaxError) => 50000×50000 pixels: Image size
  in_any_mode(lambda image: image) => black and white (mode 1) the image has the dtype bool
  in_any_mode(np.uint8) => black and white (mode 1) the image has the right shape, and
  in_any_mode(black_and_white) => with a palette (mode P) the image has the right shape, and
  always_an_error => a good image has the error
  lambda name, payload: {"name": name} => a dict with name, image and error
"""

test_what_a_check_says = verdicts(SAID, globals())


def test_a_right_answer_brings_no_line_of_rays_log(capfd, recwarn):
    """Ray writes an error about restarts for each actor whose constructor has arguments."""
    assert check("02-2", Once)
    assert "core_worker" not in capfd.readouterr().err
    assert not [warning for warning in recwarn if "ray_remote_args" in str(warning.message)]
