"""A Keras model and its optimizer on disk: as they were, or a clear error."""

import json
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


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_a_damaged_model_is_told(tmp_path, model, keep):
    path = save_state(tmp_path, model, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep if keep > 1 else keep * len(whole))])
    with pytest.raises(RunError, match="damaged") as caught:
        load_state(tmp_path)
    assert MODEL_FILE in caught.value.attempt and "epoch before" in caught.value.fix


def test_a_flipped_byte_in_the_weights_is_told(tmp_path, model):
    path = save_state(tmp_path, model, 0)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 255
    path.write_bytes(whole)
    with pytest.raises(RunError, match="damaged"):
        load_state(tmp_path)


def test_a_folder_without_a_model_says_what_it_holds(tmp_path):
    (tmp_path / "weights.h5").write_text("")
    with pytest.raises(RunError, match=r"no such file; the folder holds weights\.h5"):
        load_state(tmp_path)
    with pytest.raises(RunError, match="the folder holds nothing"):
        load_state(tmp_path / "nowhere")


def test_state_may_be_missing_but_not_damaged(tmp_path, model):
    save_state(tmp_path, model, 3)
    (tmp_path / STATE_FILE).write_text('{"epoch": ')
    with pytest.raises(RunError, match="damaged"):
        load_state(tmp_path)
    (tmp_path / STATE_FILE).write_text(json.dumps([3]))
    with pytest.raises(RunError, match="no training state"):
        load_state(tmp_path)
    os.remove(tmp_path / STATE_FILE)  # as Ray's own callback leaves it
    assert load_state(tmp_path)[1] == {}


def test_what_cannot_be_saved_is_told(tmp_path, model):
    with pytest.raises(RunError, match="not JSON serializable"):
        save_state(tmp_path, model, 0, rows={1, 2})
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="save the training state in"):
        save_state(tmp_path / "file" / "below", model, 0)


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
    """As in Ray Train: Keras 2 on its own would write HDF5 under this name."""
    thread = threading.Thread(target=save_state, args=(tmp_path, model, 0))
    thread.start()
    thread.join()
    assert zipfile.is_zipfile(tmp_path / MODEL_FILE)
    assert weights_distance(load_state(tmp_path)[0], model) == 0


def test_hdf5_under_that_name_is_loaded_by_keras_2(tmp_path, model):
    """As Ray's ReportCheckpointCallback leaves it there with Keras 2."""
    model.save(tmp_path / "model.h5")
    (tmp_path / "model.h5").rename(tmp_path / MODEL_FILE)
    if not tf.keras.Model.__module__.startswith("tf_keras."):  # Keras 3 reads no such file
        with pytest.raises(RunError, match="of another Keras"):
            load_state(tmp_path)
        return
    loaded, state = load_state(tmp_path)
    assert state == {} and weights_distance(loaded, model) == 0
    whole = (tmp_path / MODEL_FILE).read_bytes()
    (tmp_path / MODEL_FILE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RunError, match="damaged"):
        load_state(tmp_path)
