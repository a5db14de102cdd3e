"""The digits that benchmarks render."""

import numpy as np

from benchmarks._digits import rendered


def test_digits_from_fonts_are_the_same_for_a_seed_and_can_be_learned():
    train, some, test = rendered(4000), rendered(200), rendered(1000, split="test")
    assert np.array_equal(train.images[:200], some.images) and np.array_equal(train.labels[:200], some.labels)
    sets = [train.images, test.images, rendered(500, seed=1).images]
    assert len({image.tobytes() for images in sets for image in images}) == 5500
    # The mean image of each class recognises most of them: the labels are right.
    means = np.stack([train.images[train.labels == digit].mean(axis=0) for digit in range(10)])
    distance = ((test.images[:, None] - means) ** 2).sum(axis=(2, 3))
    assert (distance.argmin(axis=1) == test.labels).mean() > 0.7
