#!/usr/bin/env bash
# If the first epoch's metric is NaN, Keras' callbacks take it for the best one, and no later epoch is better.
#
# keras 3.15.1, tensorflow 2.21.0, 2026-11-30. EarlyStopping, ModelCheckpoint(save_best_only=True) and
# ReduceLROnPlateau keep the first value whatever it is, and no number is less or greater than NaN. So if the first
# validation overflows and the loss falls from then on, the run stops early with the first epoch's weights, no later
# model is saved, and the learning rate shrinks in each epoch. A NaN in a later epoch is just no improvement. Nothing
# warns. tf_keras begins with infinity, and goes on.
# What works: a callback before these that replaces a NaN in logs by infinity, as below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet keras==3.15.1 tensorflow==2.21.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import os

import keras
import numpy

NAN = float("nan")
ROWS = numpy.ones((8, 1), "float32")


class Validate(keras.callbacks.Callback):
    """Stands for a validation whose losses are given."""

    def __init__(self, losses):
        super().__init__()
        self.losses = losses

    def on_epoch_end(self, epoch, logs=None):
        logs["val_loss"] = self.losses[epoch]
        self.model.layers[0].kernel.assign([[float(epoch)]])  # so the weight says which epoch it is from


class NoNaN(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if numpy.isnan(logs["val_loss"]):
            logs["val_loss"] = float("inf")


def run(losses, *callbacks):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    history = model.fit(ROWS, ROWS, epochs=5, verbose=0, callbacks=[Validate(losses), *callbacks])
    return model, len(history.epoch)


def report(name, losses, *before):
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
    model, epochs = run(losses, *before, stopping)
    restored = int(model.layers[0].kernel[0, 0])
    print(f"{name}: EarlyStopping ends after {epochs} epochs with the weights of epoch {restored}")
    run(losses, *before, keras.callbacks.ModelCheckpoint("best.keras", "val_loss", save_best_only=True))
    saved = keras.saving.load_model("best.keras")
    print(f"{name}: ModelCheckpoint keeps epoch {int(saved.layers[0].kernel[0, 0])}")
    os.remove("best.keras")
    model, _ = run(losses, *before, keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.1, patience=1))
    print(f"{name}: ReduceLROnPlateau ends with a rate of {float(model.optimizer.learning_rate):.0e}")


report("falling", [0.9, 0.5, 0.4, 0.3, 0.2])
report("NaN in the second epoch", [0.9, NAN, 0.4, 0.3, 0.2])
report("NaN in the first epoch", [NAN, 0.5, 0.4, 0.3, 0.2])
report("infinity instead of NaN", [NAN, 0.5, 0.4, 0.3, 0.2], NoNaN())
END

cat > expected.txt <<'END'
falling: EarlyStopping ends after 5 epochs with the weights of epoch 4
falling: ModelCheckpoint keeps epoch 4
falling: ReduceLROnPlateau ends with a rate of 1e-01
NaN in the second epoch: EarlyStopping ends after 5 epochs with the weights of epoch 4
NaN in the second epoch: ModelCheckpoint keeps epoch 4
NaN in the second epoch: ReduceLROnPlateau ends with a rate of 1e-02
NaN in the first epoch: EarlyStopping ends after 3 epochs with the weights of epoch 0
NaN in the first epoch: ModelCheckpoint keeps epoch 0
NaN in the first epoch: ReduceLROnPlateau ends with a rate of 1e-05
infinity instead of NaN: EarlyStopping ends after 5 epochs with the weights of epoch 4
infinity instead of NaN: ModelCheckpoint keeps epoch 4
infinity instead of NaN: ReduceLROnPlateau ends with a rate of 1e-01
END

TF_CPP_MIN_LOG_LEVEL=3 venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
