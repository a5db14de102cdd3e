"""The models of `labkit.models.torch` in plain numpy and double precision: what others must agree with."""

import numpy as np


def evaluate(weights, images, labels, *, rows_at_once=500):
    """Mean accuracy and mean loss of a cnn or mlp.

    Args:
        weights: a ``state_dict()`` as arrays.
        images: uint8 [n, 28, 28]; labels: int64 [n].
    """
    weights = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    correct, loss = [], []
    for first in range(0, len(labels), rows_at_once):
        x = images[first : first + rows_at_once].astype(np.float64) / 255
        y = labels[first : first + rows_at_once]
        logits = _logits(weights, x)
        shifted = logits - logits.max(axis=1, keepdims=True)
        loss.append(np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(y)), y])
        correct.append(logits.argmax(axis=1) == y)
    return {
        "val_accuracy": float(np.concatenate(correct).mean()),
        "val_loss": float(np.concatenate(loss).mean()),
    }


def _logits(weights, x):
    names = sorted({name.rpartition(".")[0] for name in weights}, key=int)
    convolutions = [n for n in names if weights[f"{n}.weight"].ndim == 4]
    if convolutions:
        x = x[:, None]
        for name in convolutions:
            x = _pooled(np.maximum(_convolved(x, weights[f"{name}.weight"], weights[f"{name}.bias"]), 0))
    x = x.reshape(len(x), -1)
    dense = [n for n in names if weights[f"{n}.weight"].ndim == 2]
    for name in dense:
        x = x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
        x = np.maximum(x, 0) if name != dense[-1] else x
    return x


def _convolved(x, kernels, bias):
    """3×3 with one row of zeros around: [n, in, h, w] -> [n, out, h, w]."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, kernels, optimize=True) + bias[:, None, None]


def _pooled(x):
    """2×2 maximum: [n, c, h, w] -> [n, c, h // 2, w // 2]."""
    n, c, h, w = x.shape
    return x[:, :, : h // 2 * 2, : w // 2 * 2].reshape(n, c, h // 2, 2, w // 2, 2).max(axis=(3, 5))
