"""Dropping a tf.data iterator sometimes waits about as long as the iterator has lived. A minute."""

import os
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf


def generate():
    for _ in range(100):
        time.sleep(0.005)
        yield 0.0


def dropped(rows: tf.data.Dataset) -> tuple[float, float]:
    """Seconds that an iterator lived, and seconds that `del` took."""
    begin, iterator = time.monotonic(), iter(rows)
    for _ in iterator:
        pass
    middle = time.monotonic()
    del iterator
    return middle - begin, time.monotonic() - middle


if __name__ == "__main__":
    print("tensorflow", tf.__version__)
    rows = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec((), tf.float32))
    options = tf.data.Options()
    options.autotune.enabled = False
    for name, one in (("autotune", rows), ("no autotune", rows.with_options(options))):
        times = [dropped(one) for _ in range(40)]
        slow = [waited for _, waited in times if waited > 0.1]
        lived = sum(one for one, _ in times) / len(times)
        print(
            f"{name}: 40 iterators lived {lived:.2f} s on average; {len(slow)} took more than 0.1 s to drop, "
            f"at most {max(w for _, w in times):.2f} s",
            flush=True,
        )
