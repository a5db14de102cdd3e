"""A Keras model and its optimizer on disk: as they were, or a clear error."""

import os
import threading
import zipfile

import numpy as np
import pytest

from labkit.errors import RunError
from labkit.models.keras.checkpoint import MODEL_FILE, STATE_FILE, load_state, save_state, weights_distance
from labkit.models.keras.networks import mlp, tf

X = np.random.default_rng(0).random((40, 28, 28), dtype=np.float32)
Y = np.arange(40) % 10
KERAS_2 = tf.keras.Model.__module__.startswith("tf_keras.")


def compiled(model):
    model.compile(tf.keras.optimizers.Adam(0.01), tf.keras.losses.SparseCategoricalCrossentropy(True))
    return model


def train(model, epochs=2):
    model.fit(X, Y, batch_size=20, shuffle=False, epochs=epochs, verbose=0)
    return model


@pytest.fixture
def model():
    return train(compiled(mlp((8,), seed=0)))


def test_a_loaded_training_goes_on_as_if_it_had_never_stopped(tmp_path, model):
    save_state(tmp_path, model, 1, accuracy=np.float32(0.5), names=["a"])
    loaded, state = load_state(tmp_path)
    assert state == {"epoch": 1, "accuracy": 0.5, "names": ["a"]}
    assert weights_distance(loaded, model) == 0
    assert int(loaded.optimizer.iterations.numpy()) == 4
    begun_anew = compiled(mlp((8,), seed=None))
    begun_anew.set_weights(model.get_weights())
    for one in (model, loaded, begun_anew):
        train(one)
    assert weights_distance(loaded, model) < 1e-6
    assert weights_distance(begun_anew, model) > 1e-3  # the same weights, but an optimizer without memory
    os.remove(tmp_path / STATE_FILE)  # as Ray's own callback leaves it
    assert load_state(tmp_path)[1] == {}


@pytest.mark.parametrize("keep", [0, 0.5, 0.99])
def test_a_damaged_model_is_told(tmp_path, model, keep):
    path = save_state(tmp_path, model, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(RunError, match="damaged") as caught:
        load_state(tmp_path)
    assert MODEL_FILE in caught.value.attempt and "epoch before" in caught.value.fix


def test_a_folder_without_a_model_says_what_it_holds(tmp_path):
    (tmp_path / "weights.h5").write_text("")
    with pytest.raises(RunError, match=r"no such file; the folder holds weights\.h5"):
        load_state(tmp_path)
    with pytest.raises(RunError, match="the folder holds nothing"):
        load_state(tmp_path / "nowhere")


def test_distance(model):
    weights = [array.copy() for array in model.get_weights()]
    weights[1][0] += 0.25
    assert weights_distance(model, weights) == pytest.approx(0.25)
    assert weights_distance(model, model) == 0
    weights[0][0, 0] = np.nan
    assert np.isnan(weights_distance(model, weights))
    with pytest.raises(RunError, match="shape"):
        weights_distance(model, mlp((9,)))


def test_in_a_thread_too_the_format_is_that_of_keras(tmp_path, model):
    """As in Ray Train. Keras 2 on its own writes its format at a thread's first save, and HDF5 later."""
    formats = []

    def save_twice():
        for _ in (0, 1):
            model.save(tmp_path / MODEL_FILE)
            formats.append(zipfile.is_zipfile(tmp_path / MODEL_FILE))
        save_state(tmp_path, model, 1)

    thread = threading.Thread(target=save_twice)
    thread.start()
    thread.join()
    assert formats == [True, not KERAS_2]
    assert zipfile.is_zipfile(tmp_path / MODEL_FILE)
    assert weights_distance(load_state(tmp_path)[0], model) == 0


def test_hdf5_under_that_name_is_loaded_by_keras_2(tmp_path, model):
    """As Ray's ReportCheckpointCallback leaves it there with Keras 2, from the second epoch on."""
    model.save(tmp_path / "model.h5")
    (tmp_path / "model.h5").rename(tmp_path / MODEL_FILE)
    if KERAS_2:
        loaded, state = load_state(tmp_path)
        assert state == {} and weights_distance(loaded, model) == 0
    else:  # Keras 3 reads no such file
        with pytest.raises(RunError, match="of another Keras"):
            load_state(tmp_path)
