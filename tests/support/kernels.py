"""A Jupyter kernel as a front end drives it: cells run in it, it is interrupted, killed and shut down."""

import contextlib
import os
import queue
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jupyter_client.manager import KernelManager

# A cluster, and a run that lasts for minutes and does nothing but report.
SETUP = """
import os, time
import ray, ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from labkit.local import cluster
from labkit.worker.hooks import current
from labkit.train.panel import TrainPanel

lab = cluster.start()

def loop(config):
    for epoch in range(config["epochs"]):
        current().begin_epoch(10)
        for step in range(10):
            time.sleep(0.05)
            current().step(loss=1 / (step + 1))
        ray.train.report({"epoch": epoch})

epochs = 1000
print("address", lab.address)
"""
# One cell, run again, unchanged, after the interrupt.
FIT = """
panel = TrainPanel("run")
trainer = TorchTrainer(
    loop,
    train_loop_config={"epochs": epochs},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name=panel.run_id, storage_path=os.environ["LABKIT_HOME"] + "/runs"),
)
with panel.watch(trainer):
    result = trainer.fit()
print("finished", panel.state.status)
"""


@dataclass
class Cell:
    """What a cell has put out so far.

    Attributes:
        text: all of its plain text: streams, results, displays.
        error: what a front end shows for an exception, or None.
        done: whether the kernel is idle again.
    """

    request: str
    text: str = ""
    error: str | None = None
    done: bool = False


@contextlib.contextmanager
def without_ports() -> Iterator[dict[str, Any]]:
    """Options of a `KernelManager` whose kernel listens on sockets in a folder; their paths must be short.

    Its ports would be chosen and released a second before the kernel binds them, and a cluster of the other
    lane takes one now and then. JupyterLab then starts the kernel again; nothing else does.
    """
    with tempfile.TemporaryDirectory() as folder:
        yield {"transport": "ipc", "ip": f"{folder}/kernel"}


class Kernel:
    """One kernel, of the Python that runs the tests.

    Args:
        options: of its `KernelManager`.
        variables: further environment variables.

    Attributes:
        client: jupyter_client's, connected.
    """

    def __init__(self, options: dict[str, Any], **variables: str) -> None:
        self._manager = KernelManager(kernel_name="python3", **options)
        self._manager.start_kernel(env={**os.environ, **variables})
        self.client = self._manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=300)

    @property
    def pid(self) -> int:
        return self._manager.provisioner.process.pid

    def begin(self, code: str) -> Cell:
        """Send a cell off; do not wait for it."""
        return Cell(self.client.execute(code))

    def wait(self, cell: Cell, *, until: str | None = None, seconds: float = 300) -> Cell:
        """Wait for the end of a cell, or until a text is in its output."""
        deadline = time.monotonic() + seconds
        while not cell.done and not (until is not None and until in cell.text):
            assert time.monotonic() < deadline, f"after {seconds} s: {cell}"
            self.listen(cell)
        return cell

    def listen(self, cell: Cell) -> None:
        """Take in the next message of the kernel, if one comes soon."""
        with contextlib.suppress(queue.Empty):
            self._take(cell, self.client.get_iopub_msg(timeout=0.2))

    def run(self, code: str, *, seconds: float = 300) -> Cell:
        return self.wait(self.begin(code), seconds=seconds)

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def kill(self) -> None:
        """As the system does it when memory runs out: no cell, no `atexit`, nothing."""
        self._manager.provisioner.process.kill()
        self._manager.provisioner.process.wait()

    def shut_down(self) -> int:
        """Interrupt it and ask it to end, as JupyterLab does; returns its exit status, 0 if that worked.

        JupyterLab insists after 5 s. Here it has longer, because a busy machine may need that.
        """
        process, self._manager.shutdown_wait_time = self._manager.provisioner.process, 240.0
        self._manager.shutdown_kernel()
        return process.wait()

    def close(self) -> None:
        self.client.stop_channels()
        if self._manager.provisioner is not None and self._manager.provisioner.has_process:
            self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()

    def _take(self, cell: Cell, message: dict) -> None:
        if message["parent_header"].get("msg_id") != cell.request:
            return
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            cell.text += content["text"]
        elif kind in ("execute_result", "display_data", "update_display_data"):
            cell.text += content["data"].get("text/plain", "") + "\n"
        elif kind == "error":
            cell.error = "\n".join(content["traceback"])
        elif kind == "status" and content["execution_state"] == "idle":
            cell.done = True


@contextlib.contextmanager
def kernel(**variables: str) -> Iterator[Kernel]:
    """A kernel that is gone at the end of the block."""
    with without_ports() as options:
        kernel = Kernel(options, **variables)
        try:
            yield kernel
        finally:
            kernel.close()
