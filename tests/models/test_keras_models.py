"""The Keras models: torch's architectures, torch's weights, the same answers."""

import numpy as np
import pytest
import torch

from labkit.errors import LabError
from labkit.models import keras as keras_models
from labkit.models import torch as torch_models

IMAGES = np.random.default_rng(0).integers(0, 256, (7, 28, 28), dtype=np.uint8)
CALLS = [
    ("mlp", {"seed": 0}),
    ("cnn", {"seed": 4}),
]


@pytest.mark.parametrize("name, options", CALLS)
def test_answers_as_the_torch_model_of_that_seed(name, options):
    ours, theirs = getattr(keras_models, name)(**options), getattr(torch_models, name)(**options)
    with torch.no_grad():
        expected = theirs(torch_models.to_input(IMAGES)).numpy()
    np.testing.assert_allclose(ours(keras_models.to_input(IMAGES)).numpy(), expected, atol=2e-6)
    assert ours.count_params() == sum(weights.numel() for weights in theirs.parameters())


def test_distance():
    model = keras_models.mlp((8,), seed=0)
    weights = [array.copy() for array in model.get_weights()]
    weights[1][0] += 0.25
    assert keras_models.weights_distance(model, weights) == pytest.approx(0.25)
    assert keras_models.weights_distance(model, model) == 0
    with pytest.raises(LabError, match="shape"):
        keras_models.weights_distance(model, keras_models.mlp((9,)))
