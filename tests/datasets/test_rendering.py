"""Digits from fonts: endless, the same for the same seed, and such that they can be learned."""

import hashlib

import numpy as np
import pytest

from labkit.datasets import rendering
from labkit.datasets.rendering import BLOCK, check_request, render
from labkit.errors import DatasetError


def same(one, other):
    return np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])


def test_shapes_and_types():
    images, labels = render(0, 50)
    assert (images.shape, images.dtype) == ((50, 28, 28), np.uint8)
    assert (labels.shape, labels.dtype) == ((50,), np.int64)


def test_the_number_of_threads_changes_nothing():
    n = 3 * BLOCK + 17
    one = render(0, n, seed=5, threads=1)
    for threads in (2, 5, None):
        assert same(one, render(0, n, seed=5, threads=threads))


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, 1), (1, 2), (0, BLOCK), (BLOCK - 1, BLOCK + 1), (100, 2 * BLOCK + 5), (2 * BLOCK, 2500)],
)
def test_any_part_is_the_same_by_itself(start, stop):
    images, labels = render(0, 2500, seed=5)
    assert same((images[start:stop], labels[start:stop]), render(start, stop, seed=5))


def test_it_is_the_same_on_every_machine():
    """If it changed on purpose, or with Pillow or matplotlib: raise FORM, and put the new sum here."""
    images, labels = render(0, 1100)
    assert rendering.FORM == 1
    found = hashlib.sha256(images.tobytes() + labels.astype("<i8").tobytes()).hexdigest()
    assert found == "5d92ec677dfa5a1beb9b124464ff9c6fec4d2697b209cffd348dee46ac3568af"


def test_seeds_and_splits_have_nothing_in_common():
    sets = [render(0, 500, seed=seed, split=split)[0] for seed in (0, 1) for split in ("train", "test")]
    prints = {image.tobytes() for images in sets for image in images}
    assert len(prints) == 4 * 500


def test_all_digits_come_equally_often():
    labels = render(0, 20_000)[1]
    counts = np.bincount(labels, minlength=10)
    assert counts.size == 10
    assert counts.min() > 1800  # 2,000 is expected, with a standard deviation of 42
    assert counts.max() < 2200


def test_a_digit_is_white_on_black_and_inside_its_image():
    images = render(0, 2000)[0].astype(float)
    border = np.concatenate([images[:, 0], images[:, -1], images[:, :, 0], images[:, :, -1]], axis=1)
    assert border.mean() < 12  # noise, and no digit
    assert (images.max(axis=(1, 2)) > 120).all()
    assert 25 < images.mean() < 45


def test_digits_differ_in_place_size_turn_and_noise():
    images, labels = render(0, 2000)
    ones = images[labels == 1].astype(float) > 128
    rows = np.array([np.flatnonzero(image.any(axis=1))[[0, -1]] for image in ones])
    heights = rows[:, 1] - rows[:, 0]
    assert heights.min() <= 18
    assert heights.max() >= 22
    assert rows.mean(axis=1).std() > 0.8  # pixels
    corners = images[:, :3, :3].std(axis=(1, 2))
    assert corners.min() < 1
    assert corners.max() > 15


def test_they_can_be_told_apart():
    """The mean image of each class alone recognises most of them: the labels are right."""
    images, labels = render(0, 4000)
    x = images.reshape(len(images), -1) / 255
    means = np.stack([x[labels == digit].mean(axis=0) for digit in range(10)])
    test, expected = render(0, 1000, split="test")
    distance = ((test.reshape(1000, 1, -1) / 255 - means) ** 2).sum(axis=2)
    assert (distance.argmin(axis=1) == expected).mean() > 0.7


def test_progress_is_told():
    seen = []
    render(10, 2 * BLOCK + 20, progress=lambda *at: seen.append(at))
    assert seen == [(BLOCK - 10, 2 * BLOCK + 10), (2 * BLOCK - 10, 2 * BLOCK + 10), (2 * BLOCK + 10,) * 2]


def test_an_interrupt_ends_it():
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        render(0, 50 * BLOCK, progress=interrupt)


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ((0, 0, "train"), "their number is 0"),
        ((-5, 0, "train"), "their number is -5"),
        ((1e3, 0, "train"), "their number is 1000.0"),
        ((1, -1, "train"), "the seed is -1"),
        ((1, None, "train"), "the seed is None"),
        ((1, 0, "val"), "there is no split 'val'"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, fact):
    with pytest.raises(DatasetError) as caught:
        check_request(*arguments)
    assert caught.value.fact == fact


def test_a_missing_font_is_named(tmp_path):
    with pytest.raises(DatasetError, match="Missing.ttf"):
        rendering._glyph(tmp_path / "Missing.ttf", 3)
