"""What a script of the comparison asks for (rows, epochs), and what it notes: when, how fast, how large.

    work = Stopwatch(folder)               # made by `labkit.comparison.compare`, with the rows in it
    work.launch()                          # the engine is up; now the training is launched
    for batch in work.steps(loader): ...   # in every rank, for each epoch
    work.save(model)                       # rank 0's weights

It reads clocks and writes one small file per rank when an epoch ends, and nothing in between. Pickled into a
rank it is the same: all it has is the folder.
"""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_TASK = "task.json"


@dataclass(frozen=True, kw_only=True)
class Task:
    """What all engines are given.

    Attributes:
        epochs: of each run.
        dies: whether rank 1 (of one process: rank 0) is killed in the middle of its first epoch.
    """

    epochs: int
    dies: bool = False

    def write(self, folder: Path) -> None:
        """Put it where a `Stopwatch` on `folder` finds it."""
        (folder / _TASK).write_text(json.dumps(asdict(self)))


class Stopwatch:
    """The watch of one run.

    Args:
        folder: of the run: ``task.json`` says what to do; what is measured comes into it. Beside it lie the
            data, ``rows.parquet``, and the same in the parts of two ranks.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._task = Task(**json.loads((self.folder / _TASK).read_text()))
        self._began = time.time()
        self._first_step: float | None = None
        self._first_wait = 0.0  # seconds of the first epoch until its first step was done
        self._epochs: list[tuple[int, float]] = []  # (rows of this rank, seconds)

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["folder"])

    @property
    def epochs(self) -> int:
        """How many to train."""
        return self._task.epochs

    def part(self, rank: int) -> Path:
        """The Parquet file with the rows that a `DistributedSampler` would give to `rank`, in its order."""
        return self.folder.parent / f"part-{rank}.parquet"

    def rows(self) -> Any:
        """All rows as a `TensorDataset` of images (uint8 [n, 28, 28]) and labels."""
        import torch
        from torch.utils.data import TensorDataset

        from labkit.datasets.images import read_parquet

        data = read_parquet(
            self.folder.parent / "rows.parquet", name="rows", split="train", classes=tuple("0123456789")
        )
        return TensorDataset(torch.tensor(data.images), torch.tensor(data.labels))

    def launch(self) -> None:
        """Note that the engine is up."""
        if _rank() == 0:
            self._write("launch", {"at": time.time()})

    def steps(self, batches: Iterable[Any]) -> Iterator[Any]:
        """One epoch of batches, each as it is."""
        clock = time.perf_counter
        began, rows = clock(), 0
        for step, batch in enumerate(batches):
            if self._task.dies and step == 5 and self._first_step and not self._epochs:
                self._die()
            rows += len(batch["label"] if isinstance(batch, dict) else batch[1])
            yield batch
            if self._first_step is None:
                self._first_step, self._first_wait = time.time(), clock() - began
        self._epochs.append((rows, clock() - began))
        self._note()

    def save(self, model: Any) -> None:
        """Keep the weights, those of rank 0."""
        if _rank() == 0:
            import torch

            from labkit.models.torch.networks import unwrapped

            torch.save(unwrapped(model).state_dict(), self.folder / "weights.pt")

    def _note(self) -> None:
        unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts in bytes there
        self._write(
            f"rank-{_rank()}-{os.getpid()}",
            {
                "rank": _rank(),
                "first_step": self._first_step,
                "first_wait": self._first_wait,
                "epochs": self._epochs,
                "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
            },
        )

    def _die(self) -> None:
        self._write(f"attempt-{_rank()}-{os.getpid()}", {"at": time.time()})
        if (
            _rank() == int(os.environ.get("WORLD_SIZE", "1")) - 1
            and not (self.folder / "death.json").exists()
        ):
            self._write("death", {"at": time.time(), "rank": _rank()})
            os.kill(os.getpid(), signal.SIGKILL)

    def _write(self, name: str, content: dict[str, Any]) -> None:
        part = self.folder / f".{name}"
        part.write_text(json.dumps(content))
        part.replace(self.folder / f"{name}.json")


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))
