"""Digits for benchmarks: as many as asked for, from the data set that ships."""

import io
from typing import Any

import numpy as np

from course import datasets


def digits(n: int) -> datasets.Dataset:
    """Draw `n` of the shipped digits, with noise in their lowest bits so that copies don't compress."""
    rng = np.random.default_rng(0)
    shipped = datasets.load("digits", n=1437)  # all for training, also in small mode
    data = shipped[rng.integers(len(shipped), size=n)]
    noise = rng.integers(0, 8, data.images.shape, np.uint8)
    return datasets.Dataset(data.images ^ noise, data.labels, "noisy digits", "train", data.classes)


def upload(data: datasets.Dataset, store: Any, path: str) -> list[str]:
    """Send each image as a PNG object ``PATH/LABEL/ROW.png``, and return these; PATH begins with a bucket."""
    from PIL import Image

    store.bucket(path.partition("/")[0])
    objects = {}
    for row, (image, label) in enumerate(zip(data.images, data.labels, strict=True)):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        objects[f"{path}/{label}/{row:05}.png"] = file.getvalue()
    store.files.pipe(objects)
    return sorted(objects)
