"""The exercises of lesson 02: what is said of a mistake. They run on a cluster."""

import io
import sys

import numpy as np
import PIL.Image
import pytest
from ray import cloudpickle

from course.exercises import check
from verdicts import checks, solution

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("lab"),
    pytest.mark.covers("course/exercises/", "lessons/checks/"),
]
# Workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def decode(name, payload):
    return {"image": np.asarray(PIL.Image.open(io.BytesIO(payload)).convert("L"))}


def in_any_mode(payload):
    return np.asarray(PIL.Image.open(io.BytesIO(payload)))


def grey_only(payload):
    image = PIL.Image.open(io.BytesIO(payload))
    if image.mode != "L":
        raise ValueError(image.mode)
    return np.asarray(image)


INK = 'return {**batch, "ink": batch["image"].mean(axis=(1, 2)) / 255}'
LOAD, TURNED = "self.table = load()", 'return {"image": self.table[batch["image"]]}'
DECODE = 'decode(name, payload)["image"]'


MISTAKES = {
    "02-1": [
        ({INK: 'batch["ink"] = batch["image"].mean(axis=(1, 2)) / 255\n    return batch'}, "solved"),
        ({" / 255": ""}, "from 0 to 255"),
        ({"axis=(1, 2)": ""}, "one number for the whole batch"),
        ({"axis=(1, 2)": "axis=1"}, "28 numbers for each image"),
        ({"**batch, ": ""}, "the column 'image' is gone"),
        ({INK: 'return batch["image"].mean(axis=(1, 2))'}, "a batch with the column"),
        ({INK: f'batch["image"] //= 2\n    {INK}'}, "the column 'image'"),
    ],
    "02-2": [
        (
            {
                LOAD: "self.load, self.table = load, None",
                TURNED: f"self.table = self.table or [*self.load()]\n        {TURNED}",
                "self.table[": "np.array(self.table)[",
            },
            "solved",
        ),
        ({LOAD: "self.load = load", "self.table[": "self.load()["}, "`load` was called 3 times"),
        ({'self.table[batch["image"]]': '255 - batch["image"]'}, "not with the table that `load` returns"),
        (
            {LOAD: "self.table = 0 * load() + np.arange(255, -1, -1, dtype=np.uint8)"},
            "not with the table that `load` returns",
        ),
        ({TURNED: "return batch"}, "values differ"),
        ({LOAD: "...", TURNED: "..."}, "not attempted"),
    ],
    "02-3": [
        ({DECODE: "grey_only(payload)"}, "solved"),
        ({"found.shape != (28, 28)": "False"}, "10×12"),
        (
            {"found.shape != (28, 28)": "found.size != 784"},
            "for an image of 56×14 pixels the image has the shape (14, 56)",
        ),
        ({"except Exception": "except ZeroDivisionError"}, "a PNG that was cut off"),
        (
            {"except Exception": "except (OSError, ValueError)"},
            "interrupted by a damaged byte: broken PNG file",
        ),
        ({"except Exception": "except (OSError, ValueError, SyntaxError)"}, "50000×50000 pixels: Image size"),
        ({DECODE: "in_any_mode(payload)"}, "black and white (mode 1) the image has the dtype bool"),
        (
            {DECODE: "np.uint8(in_any_mode(payload))"},
            "black and white (mode 1) the image has the right shape, and",
        ),
        (
            {
                DECODE: "in_any_mode(payload)",
                "image = found": "image = np.uint8(255) * found if found.dtype == bool else found",
            },
            "with a palette (mode P) the image has the right shape, and",
        ),
        ({'"error": error': '"error": "bad"'}, "a good image has the error"),
        ({'"image": image, "error": error': ""}, "a dict with name, image and error"),
    ],
}


test_what_a_check_says = checks(MISTAKES, np=np, decode=decode, in_any_mode=in_any_mode, grey_only=grey_only)


def test_a_right_answer_brings_no_line_of_rays_log(capfd, recwarn):
    """Ray writes an error about restarts for each actor whose constructor has arguments."""
    assert check("02-2", *solution("02-2"))
    assert "core_worker" not in capfd.readouterr().err
    assert not [warning for warning in recwarn if "ray_remote_args" in str(warning.message)]
