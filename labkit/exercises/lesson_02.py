"""Lesson 02: a function for batches, what is loaded once, shards, bad objects."""

import io
from typing import Any

import numpy as np

from labkit.exercises.answers import (
    NotAttempted,
    Wrong,
    array_of,
    close_to,
    describe,
    is_blank,
    result_of,
    same_array,
)
from labkit.exercises.registry import Lesson

LESSON = Lesson("02", "Data preprocessing")


@LESSON.exercise(
    "02-1",
    "One number for each image",
    "`batch['image']` has the shape (rows, 28, 28). Which of these three axes should be left?",
    "`mean` accepts several axes at once: `axis=(…, …)`. Pixels go from 0 to 255.",
    "`batch['image'].mean(axis=(1, 2)) / 255`, in a dict with all the columns of `batch`.",
)
def _ink(with_ink: Any) -> None:
    for size in (3, 1):
        images = np.zeros((size, 28, 28), np.uint8)
        images[0] = 255
        images[-1, :14] = 51
        batch = {"image": images, "label": np.arange(size)}
        result = result_of(with_ink, {name: column.copy() for name, column in batch.items()}, what="with_ink")
        if not hasattr(result, "keys") or "ink" not in result:
            raise Wrong(f"with_ink returns {describe(result)}, and a batch with the column `ink` is expected")
        for name, column in batch.items():
            if name not in result:
                raise Wrong(f"the column {name!r} is gone")
            same_array(result[name], column, what=f"the column {name!r}")
        ink = array_of(result["ink"], what="the column `ink`")
        if ink.ndim == 0:
            raise Wrong("`ink` is one number for the whole batch, and one for each image is expected")
        if ink.shape == (size, 28):
            raise Wrong("`ink` has 28 numbers for each image: take the mean over lines and columns")
        expected = images.reshape(size, -1).mean(axis=1) / 255
        if ink.shape == (size,) and np.allclose(ink, 255 * expected):
            raise Wrong("`ink` goes from 0 to 255, and from 0 to 1 is expected")
        same_array(ink, expected, what="the column `ink`")


@LESSON.exercise(
    "02-2",
    "Load it once",
    "Which of the two methods runs once, and which for every batch?",
    "What `__init__` stores on `self`, `__call__` can use.",
    "`self.table = load()` in `__init__`; `__call__` returns the same batch, by `self.table`.",
)
def _loaded_once(brighten: Any) -> None:
    if not isinstance(brighten, type):
        raise Wrong(f"Brighten is {describe(brighten)}, and a class is expected")
    if is_blank(vars(brighten).get("__call__")):
        raise NotAttempted
    table, calls = np.arange(255, -1, -1, dtype=np.uint8), []

    def load() -> np.ndarray:
        calls.append(1)
        return table

    actor = result_of(brighten, load, what="Brighten")
    at_start = len(calls)
    for seed in range(3):
        images = np.random.default_rng(seed).integers(0, 256, (2, 28, 28)).astype(np.uint8)
        batch = {"image": images.copy(), "label": np.arange(2)}
        result = result_of(actor, batch, what="an object of Brighten")
        if result is None:
            raise Wrong("an object of Brighten, called with a batch, returns nothing")
        if not hasattr(result, "keys") or not {"image", "label"} <= set(result):
            raise Wrong(f"an object of Brighten returns {describe(result)}, and the whole batch is expected")
        same_array(result["image"], table[images], what="the column `image`")
        same_array(result["label"], np.arange(2), what="the column `label`")
    if len(calls) > max(at_start, 1):
        raise Wrong(f"for 3 batches `load` was called {len(calls)} times")


@LESSON.exercise(
    "02-3",
    "Who gets how much?",
    "All three workers get the same number of whole rows.",
    "How many rows remain when 1,000 is divided by 3? The last batch of an epoch may be smaller.",
    "`1000 // 3`, `1000 % 3`, and the rows of one worker divided by 64, rounded up.",
)
def _shards(rows_each: Any, rows_lost: Any, batches_each: Any) -> None:
    near = {
        1000 / 3: "a worker gets whole rows",
        334: "then all three together would need 1,002 rows",
        1000: "that is what all three get together",
    }
    close_to(rows_each, 333, what="the number of rows of a worker", mistakes=near)
    near = {0: "3 × 333 are not all of them"}
    close_to(rows_lost, 1, what="the number of rows that no worker gets", mistakes=near)
    near = {
        5: "then the last rows of each worker are left out, and the last batch may be smaller",
        333 / 64: "there is no part of a batch; the last one may be smaller",
        16: "that is for one worker that reads all",
    }
    close_to(batches_each, 6, what="the number of batches of a worker", mistakes=near)


@LESSON.exercise(
    "02-4",
    "Note what was bad",
    "What does `decode` do with a text file? Whatever it raises, your function continues.",
    "`try`, and in `except Exception as error` the row for a bad object, with `repr(error)`.",
    "An image of another size raises nothing: compare `image.shape` with `(28, 28)` yourself.",
)
def _noted(decode_or_note: Any) -> None:
    good = np.random.default_rng(0).integers(0, 256, (28, 28)).astype(np.uint8)
    payload = _png(good)
    row = _row_of(decode_or_note, "bucket/images/3/a.png", payload, "a good image")
    if row["error"] != "":
        raise Wrong(f"a good image has the error {describe(row['error'])}")
    same_array(row["image"], good, what="the image of a good object")
    cases = {
        "a PNG that was cut off": payload[: len(payload) // 2],
        "a text file": b"ask Kim about these",
        "an empty object": b"",
        "an image of 10×12 pixels": _png(np.zeros((12, 10), np.uint8)),
    }
    for what, bad in cases.items():
        row = _row_of(decode_or_note, "bucket/images/3/b.png", bad, what)
        if not row["error"]:
            raise Wrong(f"{what} has no error")
        if np.any(row["image"]):
            raise Wrong(f"{what} has an image that is not all zeros")


def _row_of(function: Any, name: str, payload: bytes, what: str) -> dict[str, Any]:
    try:
        row = result_of(function, name, payload, what="decode_or_note")
    except Wrong as error:
        raise Wrong(f"for {what}: {str(error.__cause__ or error)[:120]}") from error
    if not isinstance(row, dict) or set(row) != {"name", "image", "error"}:
        raise Wrong(f"for {what} you return {describe(row)}; a dict with name, image and error is expected")
    if row["name"] != name:
        raise Wrong(f"for {what} the name is {describe(row['name'])}")
    if not isinstance(row["error"], str):
        raise Wrong(f"for {what} the error is {describe(row['error'])}, and a text is expected")
    array_of(row["image"], shape=(28, 28), dtype="uint8", what=f"for {what} the image")
    return row


def _png(image: np.ndarray) -> bytes:
    import PIL.Image

    stream = io.BytesIO()
    PIL.Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()
