"""An elastic run counts on a dead node for up to 20 s. Two minutes on a busy machine.

Two nodes of one CPU, and a run of one or two workers. One node is killed as soon as two workers train.
"""

import contextlib
import datetime
import io
import json
import os
import secrets
import signal
import tempfile
import threading
import time
from pathlib import Path

os.environ |= {
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "5",  # 60 by default
    "RAY_health_check_period_ms": "300",  # 3000 by default; so GCS sees within 2 s that a node is dead
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}
import ray
from ray.cluster_utils import Cluster
from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer  # saves the import of torch


def train_until_killed(folder: Path) -> float:
    """Return the time at which GCS lists the killed node as dead."""

    def train() -> None:
        (folder / f"workers-{get_context().get_world_size()}").touch()
        while get_context().get_world_size() == 2:
            time.sleep(0.2)

    def kill() -> None:
        while not (folder / "workers-2").exists():
            time.sleep(0.2)
        cluster.remove_node(node, allow_graceful=False)
        while sum(one["Alive"] for one in ray.nodes()) == 2:
            time.sleep(0.1)
        known.append(time.time())

    known: list[float] = []
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        node = cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        threading.Thread(target=kill, daemon=True).start()
        run = RunConfig(storage_path=str(folder), failure_config=FailureConfig(max_failures=1))
        DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=(1, 2)), run_config=run).fit()
    finally:
        ray.shutdown()
        cluster.shutdown()
    return known[0]


def main(folder: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()):  # Ray prints the dead raylet's log
        known = train_until_killed(folder)
    print(
        f"ray {ray.__version__}; expected: once GCS lists the node as dead (0 s), the run decides on 1 worker"
    )
    (log,) = folder.glob("ray/session_2*/logs/train/ray-train-sys-controller-*.log")
    for record in map(json.loads, log.read_text().splitlines()):
        when = datetime.datetime.strptime(record["asctime"], "%Y-%m-%d %H:%M:%S,%f").timestamp() - known
        if record["message"].startswith("Detected ready resources"):
            print(f"{when:+6.1f} s: {record['message'].partition('.')[0]}")


if __name__ == "__main__":
    signal.alarm(240)  # a last resort
    with tempfile.TemporaryDirectory(prefix="r") as folder:
        os.environ["RAY_TMPDIR"] = folder
        main(Path(folder))
