"""How the torchruns on Spark's executors meet, at a port that no other program can take.

TorchDistributor asks the system for a free port, releases it, and passes its number to torchrun, which binds
it after it has imported torch: seconds later, on a busy machine half a minute later. If another program has
taken the port by then, torchrun of rank 0 fails with EADDRINUSE, and the others wait for it, for more than
ten minutes. For a training file pyspark does not notice the failure, because its wrapper drops torchrun's
exit status, and so the run hangs.

A session therefore gives its executors this rendezvous: torchrun of rank 0 binds a port that the system
chooses, keeps it, and then writes its number to a file which the others wait for. torchrun finds it as a
plugin (entry point ``torchrun.handlers``) in a folder that only these executors have on their path, and uses
it because of the variable PET_RDZV_BACKEND. All executors of a session run on this machine, so they share
the file.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.files import atomic_write
from labkit.interrupts import wait_until

_FOLDER = "LABKIT_RENDEZVOUS"
_SECONDS = 120  # for all torchruns of a launch to arrive


def prepare(folder: Path) -> None:
    """Put the plugin into `folder`; the ports will be published there too."""
    plugin = folder / "labkit_rendezvous-1.dist-info"
    plugin.mkdir()
    (plugin / "entry_points.txt").write_text(f"[torchrun.handlers]\nlabkit = {__name__}:create\n")


def variables(folder: Path) -> dict[str, str]:
    """Environment variables that make executors use it; none where PYTHONPATH cannot hold the folder."""
    if os.pathsep in str(folder):
        return {}
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return {_FOLDER: str(folder), "PET_RDZV_BACKEND": "labkit", "PYTHONPATH": path}


def create() -> Callable[[Any], Any]:
    """Return a function that makes a rendezvous from torchrun's parameters. Called by torchrun."""
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous.api import RendezvousInfo
    from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

    class PublishedPort(StaticTCPRendezvous):
        def get_backend(self) -> str:
            return "labkit"

        def next_rendezvous(self) -> RendezvousInfo:
            file = Path(os.environ[_FOLDER]) / f"port-{self.run_id}"
            if self.rank == 0:
                self._store = TCPStore(
                    self.master_addr, 0, is_master=True, timeout=self.timeout, wait_for_workers=False
                )
                atomic_write(file, str(self._store.port))
            else:
                if not wait_until(file.exists, seconds=_SECONDS, check=lambda: None):
                    raise TimeoutError(f"torchrun of rank 0 did not start within {_SECONDS} s")
                port = int(file.read_text())
                self._store = TCPStore(self.master_addr, port, is_master=False, timeout=self.timeout)
            self.master_port = self._store.port
            return super().next_rendezvous()

    def make(parameters: Any) -> PublishedPort:
        address, rank = parameters.endpoint.rpartition(":")[0], int(os.environ["NODE_RANK"])
        return PublishedPort(address, 0, rank, parameters.max_nodes, parameters.run_id, _SECONDS)

    return make
