"""What the programs import to be measured: the task, the rows, and when each step and epoch was done.

    work = Stopwatch(sys.argv[1])          # the folder of the run
    work.launch()                          # the cluster or session is up; the ranks start now
    for batch in work.steps(loader): ...   # in every rank, for each epoch
    work.save(model)                       # the weights of rank 0

It reads clocks, and writes one small file for each rank at the end of an epoch. Pickled, it is its folder.
"""

import json
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from labkit.files import atomic_write

_TASK = "task.json"
_DIES_AT = 5  # step of the first epoch


class Stopwatch:
    """Measures one run.

    Args:
        folder: of the run, made by `prepare`. The folder above it has the data.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        task = json.loads((self.folder / _TASK).read_text())
        self.epochs: int = task["epochs"]
        self._kill_last_rank: bool = task["kill_last_rank"]
        self._first_step: float | None = None
        self._first_wait = 0.0
        self._epochs: list[tuple[int, float]] = []  # (rows of this rank, seconds)

    def __reduce__(self) -> tuple:
        return Stopwatch, (self.folder,)

    @staticmethod
    def prepare(folder: Path, *, epochs: int, kill_last_rank: bool = False) -> None:
        """Make the folder of a run. `kill_last_rank` makes the last rank kill itself in its first epoch."""
        folder.mkdir(parents=True)
        (folder / _TASK).write_text(json.dumps({"epochs": epochs, "kill_last_rank": kill_last_rank}))

    def part(self, rank: int) -> Path:
        """Return the Parquet file with the rows that a `DistributedSampler` gives to `rank`, in its order."""
        return self.folder.parent / f"part-{rank}.parquet"

    def rows(self) -> Any:
        """Read all rows as a `TensorDataset` of images (uint8 [n, 28, 28]) and labels."""
        import torch
        from torch.utils.data import TensorDataset

        from course.datasets import read_rows

        images, labels = read_rows(str(self.folder.parent / "rows.parquet"))
        return TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))

    def launch(self) -> None:
        """Note that cluster or session are up and the ranks start now."""
        if _rank() == 0:
            self._write("launch", at=time.time())

    def steps(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of one epoch, and time it."""
        began = time.perf_counter()
        rows = 0
        for step, batch in enumerate(batches):
            if self._kill_last_rank and step == _DIES_AT and not self._epochs:
                self._die()
            rows += len(batch["label"] if isinstance(batch, dict) else batch[1])
            yield batch
            if self._first_step is None:
                self._first_step = time.time()
                self._first_wait = time.perf_counter() - began
        self._epochs.append((rows, time.perf_counter() - began))
        self._write(
            f"rank-{_rank()}-{os.getpid()}",
            first_step=self._first_step,
            first_wait=self._first_wait,
            epochs=self._epochs,
        )

    def save(self, model: Any) -> None:
        """Keep the weights, those of rank 0."""
        if _rank() == 0:
            import torch

            torch.save(getattr(model, "module", model).state_dict(), self.folder / "weights.pt")

    def _die(self) -> None:
        """Note the attempt; the last rank ends with SIGKILL, once."""
        self._write(f"attempt-{_rank()}-{os.getpid()}", at=time.time())
        last = _rank() == int(os.environ.get("WORLD_SIZE", "1")) - 1
        if last and not (self.folder / "death.json").exists():
            self._write("death", at=time.time())
            os.kill(os.getpid(), signal.SIGKILL)

    def _write(self, name: str, **content: Any) -> None:
        atomic_write(self.folder / f"{name}.json", json.dumps(content))


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))
