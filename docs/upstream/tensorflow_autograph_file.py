"""TensorFlow leaves a file in the temporary folder when a multiprocessing child ends. Ten seconds."""

import multiprocessing
import os
import sys
import tempfile


def child() -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    @tf.function
    def double(x):
        return 2 * x

    double(tf.constant(1.0))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = folder
        process = multiprocessing.get_context("forkserver").Process(target=child)
        process.start()
        process.join(60)
        left = [name for name in os.listdir(folder) if "autograph" in name]
        print(f"the child ended with status {process.exitcode} and left {len(left)} file(s): {left}")
        sys.exit(not left)
