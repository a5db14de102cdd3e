"""Digits from fonts: the same for the same seed, and such that they can be learned."""

import numpy as np
import pytest

from labkit.datasets import rendered


@pytest.mark.parametrize("n", [1, 128, 200])
def test_a_larger_set_starts_with_the_smaller(n):
    many, some = rendered(2500, seed=5), rendered(n, seed=5)
    assert np.array_equal(many.images[:n], some.images) and np.array_equal(many.labels[:n], some.labels)


def test_seeds_and_splits_have_nothing_in_common():
    sets = [rendered(500, seed, split=split).images for seed in (0, 1) for split in ("train", "test")]
    assert len({image.tobytes() for images in sets for image in images}) == 4 * 500


def test_they_can_be_told_apart():
    """The mean image of each class recognises most of them: the labels are right."""
    train, test = rendered(4000), rendered(1000, split="test")
    means = np.stack([train.images[train.labels == digit].mean(axis=0) for digit in range(10)])
    distance = ((test.images[:, None] - means) ** 2).sum(axis=(2, 3))
    assert (distance.argmin(axis=1) == test.labels).mean() > 0.7
