"""Lesson 02: a function for batches, what is loaded once, bad objects, what blocks change."""

import io
import warnings
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from course.exercises.answers import NotAttempted, Wrong, array_of, describe, expect_type, is_blank, result_of
from course.exercises.registry import Lesson
from course.exercises.running import learners_errors

LESSON = Lesson("02", "Data that does not fit")


@LESSON.exercise(
    "02-1 · One number for each image",
    "`batch['image']` has the shape (rows, 28, 28). Which of these three axes should be left?",
    "`mean` accepts several axes at once: `axis=(…, …)`. Pixels go from 0 to 255.",
    "`batch['image'].mean(axis=(1, 2)) / 255`, in a dict with all the columns of `batch`.",
    seconds=60,
)
def _ink(with_ink: Any) -> None:
    """The function on a batch in this process, then through ``map_batches``."""
    images = np.zeros((3, 28, 28), np.uint8)
    images[0] = 255
    images[-1, :14] = 51
    batch = {"image": images, "label": np.arange(3)}
    result = result_of(with_ink, {name: column.copy() for name, column in batch.items()}, what="with_ink")
    if not hasattr(result, "keys") or "ink" not in result:
        raise Wrong(f"with_ink returns {describe(result)}, and a batch with the column `ink` is expected")
    for name, column in batch.items():
        if name not in result:
            raise Wrong(f"the column {name!r} is gone")
        same_array(result[name], column, what=f"the column {name!r}")
    ink, expected = array_of(result["ink"], what="the column `ink`"), images.mean(axis=(1, 2)) / 255
    if ink.ndim == 0:
        raise Wrong("`ink` is one number for the whole batch, and one for each image is expected")
    if ink.shape == (3, 28):
        raise Wrong("`ink` has 28 numbers for each image: take the mean over lines and columns")
    if ink.shape == (3,) and np.allclose(ink, 255 * expected):
        raise Wrong("`ink` goes from 0 to 255, and from 0 to 1 is expected")
    same_array(ink, expected, what="the column `ink`")
    rows = mapped(with_ink, [{"image": image, "label": k} for k, image in enumerate(images)], batch_size=2)
    rows.sort(key=lambda row: row["label"])
    same_array([row["ink"] for row in rows], expected, what="on the cluster, the column `ink`")


@LESSON.exercise(
    "02-2 · Load it once",
    "Which of the two methods runs once, and which for every batch?",
    "What `__init__` stores on `self`, `__call__` can use.",
    '`self.table = load()` in `__init__`; `{"image": self.table[batch["image"]]}` in `__call__`.',
    seconds=60,
    stuck="there is no free CPU for the actor",
)
def _loaded_once(invert: Any) -> None:
    """The class in this process, where loads are counted, then in one actor, for three batches."""
    if not isinstance(invert, type):
        raise Wrong(f"Invert is {describe(invert)}, and a class is expected")
    if is_blank(vars(invert).get("__call__")):
        raise NotAttempted
    # Not the lesson's table: a class that computes 255 - image, or loads that one itself, gives other values.
    table = np.random.default_rng(1).permutation(256).astype(np.uint8)
    calls = []

    def load() -> np.ndarray:
        calls.append(1)
        return table

    images = np.random.default_rng(0).integers(0, 256, (6, 28, 28)).astype(np.uint8)
    here = result_of(invert, load, what="Invert")
    for part in images.reshape(3, 2, 28, 28):
        result = result_of(here, {"image": part.copy()}, what="an object of Invert")
        if not hasattr(result, "keys") or "image" not in result:
            raise Wrong(f"an object of Invert returns {describe(result)}, and a batch is expected")
        if np.array_equal(array_of(result["image"], what="the column `image`"), 255 - part):
            raise Wrong(
                "the images are inverted, but not with the table that `load` returns: here it's a different one"
            )
        same_array(result["image"], table[part], what="the column `image`")
    if len(calls) != 1:
        raise Wrong(f"for 3 batches `load` was called {len(calls)} times")
    from ray.data import ActorPoolStrategy

    rows = [{"image": image} for image in images]
    options = {
        "fn_constructor_args": (load,),
        "compute": ActorPoolStrategy(size=1),
        "batch_size": 2,
        "max_restarts": 0,  # otherwise Ray writes an error that restarting such an actor can fail
    }
    sums = sorted(row["image"].sum() for row in mapped(invert, rows, **options))
    same_array(
        sums, sorted(table[image].sum() for image in images), what="on the cluster, the sums of images"
    )


def _png(image: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


@LESSON.exercise(
    "02-3 · Note what was bad",
    "What does `decode` do with a text file? Whatever it raises, your function continues.",
    "`try`, and in `except Exception as error` the row for a bad object, with `repr(error)`.",
    "An image of another size raises nothing: compare `image.shape` with `(28, 28)` yourself.",
    seconds=60,
)
def _noted(decode_or_note: Any) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (28, 28)).astype(np.uint8)
    payload = _png(grey)
    row = _row_of(decode_or_note, "bucket/images/3/a.png", payload, "a good image")
    if row["error"] != "":
        raise Wrong(f"a good image has the error {describe(row['error'])}")
    same_array(row["image"], grey, what="the image of a good object")
    for mode, image in _of_other_modes(grey).items():
        _grey_or_noted(decode_or_note, mode, image)
    bad = {
        "a PNG that was cut off": payload[: len(payload) // 2],
        "a text file": b"ask Kim about these",
        "an empty object": b"",
        "a PNG whose pixels are interrupted by a damaged byte": _damaged_inside(payload),
        "a PNG that says it has 50000×50000 pixels": _of_size(payload, 50_000),
        "an image of 10×12 pixels": _png(np.zeros((12, 10), np.uint8)),
        "an image of 56×14 pixels": _png(grey.reshape(14, 56)),
    }
    for what, damaged in bad.items():
        row = _row_of(decode_or_note, "bucket/images/3/b.png", damaged, what)
        if not row["error"]:
            raise Wrong(f"{what} has no error")
        if np.any(row["image"]):
            raise Wrong(f"{what} has an image that is not all zeros")

    def noted(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        rows = [decode_or_note("bucket/images/3/b.png", each) for each in batch["payload"]]
        return {name: np.stack([row[name] for row in rows]) for name in ("name", "image", "error")}

    rows = mapped(noted, [{"payload": each} for each in (payload, *bad.values())])
    if sum(row["error"] == "" for row in rows) != 1:
        raise Wrong(f"on the cluster, a good and {len(bad)} bad objects do not give {len(bad)} errors")


def _of_other_modes(grey: np.ndarray) -> dict[str, Any]:
    """Return images of 28×28 pixels in Pillow's other modes."""
    from PIL import Image

    palette = Image.frombytes("P", (28, 28), (255 - grey).tobytes())
    palette.putpalette([level for number in range(256) for level in 3 * (255 - number,)])
    return {
        "black and white (mode 1)": Image.fromarray(grey > 127),
        "with a palette (mode P)": palette,
        "with 16 bits (mode I;16)": Image.fromarray(grey.astype(np.uint16) * 257),
        "in colour (mode RGB)": Image.fromarray(np.stack([grey] * 3, axis=-1)),
    }


def _grey_or_noted(decode_or_note: Any, mode: str, image: Any) -> None:
    """Require the greys of an image in another mode, or zeros and an error."""
    stream = io.BytesIO()
    image.save(stream, "PNG")
    what = f"an image {mode}"
    row = _row_of(decode_or_note, "bucket/images/3/c.png", stream.getvalue(), what)
    expected = np.zeros((28, 28), np.uint8) if row["error"] else np.asarray(image.convert("L"))
    same_array(row["image"], expected, what=f"for {what} the image")


def _damaged_inside(payload: bytes) -> bytes:
    """Return the PNG with its pixels in two chunks, and the name of the second damaged.

    Pillow opens it, and raises a SyntaxError when it decodes.
    """
    place = payload.index(b"IDAT")
    pixels = payload[place + 4 : place + 4 + int.from_bytes(payload[place - 4 : place], "big")]
    half = len(pixels) // 2
    return payload[: place - 4] + _chunk(b"IDAT", pixels[:half]) + _chunk(4 * b"\xff", pixels[half:])


def _of_size(payload: bytes, pixels: int) -> bytes:
    """Return the PNG with another size in its header. Pillow refuses a very large one before it decodes."""
    header = 2 * pixels.to_bytes(4, "big") + payload[24:29]
    return payload[:8] + _chunk(b"IHDR", header) + payload[33:]


def _chunk(name: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(name + content).to_bytes(4, "big")
    return len(content).to_bytes(4, "big") + name + content + checksum


@LESSON.exercise(
    "02-4 · What would change?",
    "Each task fetches the rows of one block. How many rows are in one of 8 blocks, and in one of 80?",
    "A failed task repeats its block. And how often does `__init__` run if there is one actor?",
    "There are ten times as many tasks, and each has a tenth of the rows. The actor is the same one.",
)
def _change(change: Any) -> None:
    right = {
        "tasks that fetch": ("more", "there is one for each block"),
        "rows that are fetched again if a task fails": ("less", "a task repeats its block"),
        "memory for a block": ("less", "a block has a tenth of the rows"),
        "how often the table is loaded": ("same", "the one actor loads it once, however many blocks it gets"),
    }
    if not isinstance(change, dict):
        raise Wrong(f"your answer is {describe(change)}, and the dict with four answers is expected")
    for name, (wanted, why) in right.items():
        given = change.get(name)
        if given not in ("less", "same", "more"):
            raise Wrong(f'{name!r} is {describe(given)}; write "less", "same" or "more"')
        if given != wanted:
            raise Wrong(f"{name}: {given!r} is not right, because {why}")


def same_array(answer: Any, expected: Any, *, what: str) -> None:
    """Require an array of the shape and, nearly, the values of `expected`."""
    expected = np.asarray(expected)
    array = array_of(answer, shape=expected.shape, what=what)
    off = ~np.isclose(array, expected, equal_nan=True)
    if off.any():
        raise Wrong(f"{what} has the right shape, and {off.sum()} of its {off.size} values differ")


def _row_of(function: Any, name: str, payload: bytes, what: str) -> dict[str, Any]:
    try:
        row = result_of(function, name, payload, what="decode_or_note")
    except Wrong as error:
        raise Wrong(f"for {what}: {str(error.__cause__ or error)[:120]}") from error
    if not isinstance(row, dict) or set(row) != {"name", "image", "error"}:
        raise Wrong(f"for {what} you return {describe(row)}; a dict with name, image and error is expected")
    if row["name"] != name:
        raise Wrong(f"for {what} the name is {describe(row['name'])}")
    expect_type(row["error"], "str", what=f"for {what} the error")
    array_of(row["image"], shape=(28, 28), dtype="uint8", what=f"for {what} the image")
    return row


def mapped(function: Any, rows: Sequence[Mapping[str, Any]], **options: Any) -> list[dict[str, Any]]:
    """Send `rows` through ``map_batches(function, **options)`` on the cluster, and return the rows it yields.

    Raises:
        NotAttempted: the function returns ``...``.
        Wrong: it raises, or what it returns is no batch.
    """
    import ray.data
    from ray.util.annotations import RayDeprecationWarning

    name = getattr(function, "__name__", "your function")
    with learners_errors(name), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", RayDeprecationWarning
        )  # of max_restarts, which has no other place yet
        return ray.data.from_items(list(map(dict, rows))).map_batches(function, **options).take_all()
