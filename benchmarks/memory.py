"""A stream that is larger than the object store: does the memory stay bounded?

    .venv/bin/python -m benchmarks memory [--times 4] [--repeat 1] [--json FILE]

Images come from the store in Parquet shards, are made 224×224 floats each (0.2 MB), and are
consumed in batches by a consumer that is slower than that. In all `--times` as much as Ray's object store
holds. What is printed: the bytes that went through, the most that was in the object store at one time, and
the most memory that all processes of the cluster had together, what they share not counted. The last line is
``memory: ratio=…``, the most that was in the object store over its size.
"""

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks._paired import Found, memory_of, parser
from labkit import cluster, datasets, storage
from labkit.data import DataPanel
from labkit.settings import Settings
from labkit.storage import upload_shards

_SIDE = 224
_BATCH = 64
_COUNTS = ("rows", "seconds")  # of what is no memory


@dataclass(frozen=True)
class Streamed:
    """What went through, in bytes.

    Attributes:
        capacity: of the object store.
        passed: through the preprocessing.
        stored_peak: in the object store at one time.
        processes_before, processes_peak: memory of all processes of the cluster.
        rows: that were consumed.
        seconds: of the whole stream.
    """

    capacity: int
    passed: int
    stored_peak: int
    processes_before: int
    processes_peak: int
    rows: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.passed / 1e6:,.0f} MB in {self.rows:,} rows went through an object store of"
            f" {self.capacity / 1e6:,.0f} MB in {self.seconds:.0f} s;"
            f" at most {self.stored_peak / 1e6:,.0f} MB were in it at one time;"
            f" all processes of Ray: {self.processes_before / 1e6:,.0f} MB before,"
            f" {self.processes_peak / 1e6:,.0f} MB at most"
        )


def enlarge(batch: dict[str, Any]) -> dict[str, np.ndarray]:
    """uint8 [n, 28, 28] as float32 [n, 224, 224] from 0 to 1."""
    large = batch["image"].repeat(_SIDE // 28, axis=1).repeat(_SIDE // 28, axis=2)
    return {"image": large.astype(np.float32) / 255, "label": batch["label"]}


def stream(store: storage.Store, *, times: float) -> Streamed:
    """Send `times` the size of the object store through it. A cluster must run."""
    import ray
    import ray.data

    capacity = int(ray.cluster_resources()["object_store_memory"])
    images = datasets.load("digits")
    shards = upload_shards(images, store, "benchmark-stream", rows_per_shard=_BATCH)
    paths = sorted(path for path in store.files.find(shards.path) if path.endswith(".parquet"))
    per_image = _SIDE * _SIDE * 4
    wanted = int(times * capacity / per_image / _BATCH) + 1
    paths = (paths * (wanted // len(paths) + 1))[:wanted]
    ray.data.DataContext.get_current().use_datasource_v2 = False  # its planning takes longer than the reading
    home = Settings.from_env().home
    rows, processes = 0, [memory_of(home)]
    with DataPanel("stream") as panel:
        data = ray.data.read_parquet(
            paths, filesystem=store.filesystem, columns=["image", "label"], override_num_blocks=len(paths)
        )
        for batch in data.map_batches(enlarge, batch_size=_BATCH).iter_batches(batch_size=_BATCH):
            rows += len(batch["label"])
            if rows % (50 * _BATCH) < _BATCH:  # to look takes as long as some batches
                processes.append(memory_of(home))
            time.sleep(0.02)  # a consumer that is slower than that, as trainings are
    state = panel.state
    return Streamed(
        capacity=capacity,
        passed=rows * per_image,
        stored_peak=state.memory_peak,
        processes_before=processes[0],
        processes_peak=max(processes),
        rows=rows,
        seconds=panel.seconds,
    )


def main() -> None:
    options = parser(__doc__, repeat=1)
    options.add_argument("--times", type=float, default=4, help="of the object store's size (default 4)")
    options = options.parse_args()
    settings = Settings.from_env()
    found = Found("memory", ours="stream")
    with cluster.start(settings=settings), storage.start(settings=settings) as store:
        for _ in range(options.repeat):
            streamed = stream(store, times=options.times)
            print(streamed)
            figures = {name: value / 1e6 for name, value in asdict(streamed).items() if name not in _COUNTS}
            found.add("stream", figures)
            found.beside.setdefault("streams", []).append(asdict(streamed))
    most = statistics.median(found.seconds["stored_peak"]["stream"])
    found.finish(most / figures["capacity"], json=options.json, unit="MB")


if __name__ == "__main__":
    main()
