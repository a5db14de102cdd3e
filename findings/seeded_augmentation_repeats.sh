#!/usr/bin/env bash
# With a global seed, TensorFlow's random augmentation in Dataset.map() is the same in each epoch.
#
# tensorflow 2.21.0, keras 3.15.1, 2026-11-30. tf.random.set_seed() and keras.utils.set_random_seed() give each random
# operation a fixed seed, and each pass over a data set starts its map() again from there. Keras makes one pass for each
# epoch, so tf.image.random_flip_left_right flips the same images in all of them, while shuffle() of the same pipeline
# gives another order each time. Without the seed the flips differ. A layer such as RandomFlip keeps a state and is
# right. Nothing warns. https://github.com/tensorflow/tensorflow/issues/35682, closed.
# What works: tf.image.stateless_random_... with the numbers of
# Dataset.random(seed, rerandomize_each_iteration=True), or Keras' augmentation layers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tensorflow==2.21.0 keras==3.15.1 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import keras
import tensorflow as tf

IMAGE = tf.reshape(tf.range(2.0), (1, 2, 1))
images = tf.data.Dataset.from_tensors(IMAGE).repeat(10)


def flips_by_epoch(dataset):
    """Train for three epochs, and return what was flipped in each."""
    seen = []

    class Look(keras.layers.Layer):
        def call(self, batch):
            tf.py_function(lambda batch: seen.append(int(batch[0, 0, 0, 0])), [batch], [])
            return batch[:, 0, 0]

    model = keras.Sequential([keras.Input((1, 2, 1)), Look(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(dataset.map(lambda image: (image, tf.zeros(1))).batch(1), epochs=3, verbose=0)
    return [seen[start : start + 10] for start in range(0, 30, 10)]


def report(name, dataset):
    first, second, third = flips_by_epoch(dataset)
    print(f"{name}: three epochs with the same flips: {first == second == third}")


report("no seed", images.map(tf.image.random_flip_left_right))
for seed in (0, 1):
    keras.utils.set_random_seed(seed)
    report(f"seed {seed}", images.map(tf.image.random_flip_left_right))
numbers = tf.data.Dataset.random(seed=0, rerandomize_each_iteration=True).batch(2)
stateless = tf.data.Dataset.zip(images, numbers).map(tf.image.stateless_random_flip_left_right)
report("seed 1, stateless, with other numbers in each epoch", stateless)
flip = keras.layers.RandomFlip("horizontal", seed=0)
report("seed 1, RandomFlip", images.map(lambda image: flip(image, training=True)))
END

cat > expected.txt <<'END'
no seed: three epochs with the same flips: False
seed 0: three epochs with the same flips: True
seed 1: three epochs with the same flips: True
seed 1, stateless, with other numbers in each epoch: three epochs with the same flips: False
seed 1, RandomFlip: three epochs with the same flips: False
END

TF_CPP_MIN_LOG_LEVEL=3 venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
