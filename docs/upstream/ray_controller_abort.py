"""An interrupt has no effect while the workers of a run do not start. A minute.

The cluster has one CPU, and the run asks for two workers. Each attempt to start them times out after 5 s
here, after 60 s by default.
"""

import os
import secrets
import signal
import tempfile
import threading
import time
from pathlib import Path

os.environ |= {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "5", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def interrupt(sent: list[float]) -> None:
    """As soon as the controller waits for its workers. Two more interrupts, 25 s later, force the end."""
    while not any(group["state"] == "PENDING" for group in ray.util.placement_group_table().values()):
        time.sleep(0.2)
    for wait in (25, 1, 1):
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(wait)


def main(folder: str) -> None:
    sent: list[float] = []
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    threading.Thread(target=interrupt, args=(sent,), daemon=True).start()
    try:
        scaling, config = ScalingConfig(num_workers=2), RunConfig(storage_path=folder)
        TorchTrainer(lambda: None, scaling_config=scaling, run_config=config).fit()
    except (SystemExit, KeyboardInterrupt):
        waited = time.monotonic() - sent[0]
        (log,) = Path(folder).glob("ray/session_2*/logs/train/ray-train-sys-controller-*.log")
        starts = log.read_text().count("Attempting to start")
        print(f"ray {ray.__version__}; expected: fit() ends within a few seconds of an interrupt")
        count = f"{len(sent)} interrupts, in start number {starts}"
        print(f"actual: it ended {waited:.1f} s after the first of {count}")
    finally:
        ray.shutdown()


if __name__ == "__main__":
    signal.alarm(180)  # a last resort
    with tempfile.TemporaryDirectory(prefix="r") as folder:
        os.environ["RAY_TMPDIR"] = folder
        main(folder)
