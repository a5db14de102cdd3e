"""An elastic run needs up to 20 s to notice that a node is gone. Two minutes.

Two nodes of two CPUs, and a run of two to four workers. One node is killed in the middle of the run.
"""

import os
import tempfile
import threading
import time
from pathlib import Path

os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = "5"
import ray
import ray.train
from ray.cluster_utils import Cluster
from ray.train.torch import TorchTrainer


def loop(config: dict) -> None:
    """With four workers: wait for the fault. With fewer: done."""
    context = ray.train.get_context()
    size = context.get_world_size()
    if context.get_world_rank() == 0:
        (Path(config["folder"]) / f"{size}-{time.time()}").touch()
    while size == 4:
        time.sleep(0.5)


def starts(folder: str) -> list[tuple[int, float]]:
    """(number of workers, time) of each start of the training function."""
    names = sorted((path.name for path in Path(folder).iterdir()), key=lambda name: name.partition("-")[2])
    return [(int(name.partition("-")[0]), float(name.partition("-")[2])) for name in names]


def main(folder: str) -> None:
    print("ray", ray.__version__)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    node = cluster.add_node(num_cpus=2)
    killed = []

    def fault() -> None:
        while not any(size == 4 for size, _ in starts(folder)):
            time.sleep(0.2)
        time.sleep(3)
        killed.append(time.time())
        cluster.remove_node(node, allow_graceful=False)

    try:
        ray.init(address=cluster.address, log_to_driver=False)
        threading.Thread(target=fault, daemon=True).start()
        with tempfile.TemporaryDirectory() as storage:
            TorchTrainer(
                loop,
                train_loop_config={"folder": folder},
                scaling_config=ray.train.ScalingConfig(num_workers=(2, 4), resources_per_worker={"CPU": 1}),
                run_config=ray.train.RunConfig(
                    storage_path=storage, failure_config=ray.train.FailureConfig(max_failures=3)
                ),
            ).fit()
        for size, when in starts(folder):
            print(f"{size} workers train {when - killed[0]:+.1f} s after the kill")
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
