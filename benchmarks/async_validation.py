"""Validation inside the loop and in a task next to it: all seconds, seconds blocked, of a metric.

    .venv/bin/python -m benchmarks async_validation [--rows 6000] [--repeat 3] [--epochs 4] [--json FILE]

One worker trains lesson 03's `cnn` on rendered digits. After each epoch a checkpoint goes to the object
store, and is validated on 5,000 others: not at all, in the loop, or in a task next to it. Each round has all
three, their order changes with the round; model, data and seeds are the same. The figures are medians: over
the rounds, or over the checkpoints of all rounds.

- total: from the call of `fit()` to its return; after the start: from the first step on.
- blocked: what the loop does between two epochs (save, report, validate), for each checkpoint.
- metric after: from the last step of an epoch until the validated metric of its checkpoint is there.

The last line is ``async_validation: ratio=…``: for how long a checkpoint blocks the loop, with a task next to
it over in the loop.
"""

import functools
import statistics
import tempfile
import time
from typing import Any

import pyarrow.parquet

from benchmarks._digits import rendered
from benchmarks._paired import Found, parser
from benchmarks._paired import measure as paired
from labkit import runs
from labkit.local import cluster, storage
from labkit.settings import Settings

WAYS = ("none", "inline", "task")
_VALIDATED_ROWS = 5000


def validate(checkpoint: Any, *, path: str, filesystem: Any) -> dict[str, float]:
    """The mean loss and accuracy of a checkpoint over the rows at `path`."""
    import torch

    from benchmarks._models import to_input
    from course.datasets import read_rows
    from course.models.torch import cnn

    model = cnn(seed=0).eval()
    with checkpoint.as_directory() as folder:
        model.load_state_dict(torch.load(f"{folder}/state.pt", weights_only=True)["model"])
    images, labels = read_rows(path, filesystem)
    labels = torch.tensor(labels)
    with torch.no_grad():
        scores = torch.cat([model(part) for part in to_input(images).split(512)])
    loss = torch.nn.functional.cross_entropy(scores, labels).item()
    return {"val_loss": loss, "val_accuracy": (scores.argmax(1) == labels).float().mean().item()}


def train_loop(config: dict[str, Any]) -> list[float]:
    """Train, and return the seconds that the loop stalled after each epoch."""
    import ray.train
    import torch
    from ray.train import CheckpointUploadMode
    from torch.utils.data import DataLoader, TensorDataset

    from benchmarks._models import to_input, train_epoch
    from course.models.torch import cnn

    data, way, epochs = config["data"], config["way"], config["epochs"]
    model = cnn(seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    rows = TensorDataset(to_input(data.images), torch.tensor(data.labels))
    blocked = []
    for epoch in range(epochs):
        loader = DataLoader(rows, batch_size=64, shuffle=True)
        metrics = train_epoch(model, loader, torch.nn.functional.cross_entropy, optimizer)
        began = time.perf_counter()
        folder = tempfile.mkdtemp()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/state.pt")
        checkpoint = ray.train.Checkpoint.from_directory(folder)
        if way == "inline":
            metrics.update(validate(checkpoint, **config["rows"]))
        mode = CheckpointUploadMode.SYNC if way == "inline" else CheckpointUploadMode.ASYNC
        ray.train.report(
            {"epoch": epoch, **metrics},
            checkpoint=checkpoint,
            checkpoint_upload_mode=mode,
            validation=way not in ("none", "inline"),
        )
        blocked.append(time.perf_counter() - began)
    return blocked


def measure(way: str, *, store: storage.Store, data: Any, epochs: int) -> dict[str, Any]:
    """One run: its seconds, and those of each checkpoint."""
    from ray.train import RunConfig, ScalingConfig, ValidationConfig, ValidationTaskConfig
    from ray.train.torch import TorchTrainer

    from labkit.panel.reporters import NullReporter
    from labkit.train import TrainPanel

    rows = {"path": "benchmark-validation/rows", "filesystem": store.filesystem}
    config = None
    if way == "task":
        function = functools.partial(validate, **rows)
        config = ValidationConfig(function, ValidationTaskConfig(timeout_s=120), {"num_cpus": 1})
    name = f"benchmark-validation-{way}"
    panel = TrainPanel(name, dataset=data.name, rows=len(data), reporter=NullReporter())
    trainer = TorchTrainer(
        train_loop,
        train_loop_config={"data": data, "way": way, "epochs": epochs, "rows": rows},
        scaling_config=ScalingConfig(num_workers=1),
        validation_config=config,
        run_config=RunConfig(
            name=panel.run_id,
            storage_path=store.storage_path("runs", name),
            storage_filesystem=store.filesystem,
        ),
    )
    with panel.watch(trainer):
        result = trainer.fit()
    record = runs.latest(name)
    checkpoints = record.extra.get("checkpoints", [])
    return {
        "total": record.seconds_total,
        "after_start": record.seconds_total - record.seconds["start"],
        "blocked": result.return_value,
        "metric_after": [one["seconds_to_metric"] for one in checkpoints],
        "accuracy": [metrics.get("val_accuracy") for _, metrics in result.best_checkpoints],
        "statuses": [one["status"] for one in checkpoints],
    }


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """The medians, a line for each way."""
    head = f"{'validation':10} {'total':>8} {'after start':>12} {'blocked':>12} {'metric after':>16}"
    lines = [head]
    for way, measured in found.items():
        total = statistics.median(one["total"] for one in measured)
        after = statistics.median(one["after_start"] for one in measured)
        blocked = statistics.median(s for one in measured for s in one["blocked"])
        late = [s for one in measured for s in one["metric_after"]]
        metric = f"{statistics.median(late):.1f} ({max(late):.1f})" if late else "–"
        lines.append(f"{way:10} {total:6.1f} s {after:10.1f} s {blocked * 1000:9.0f} ms {metric:>14} s")
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, repeat=3, rows=6000)
    options.add_argument("--epochs", type=int, default=4)
    options.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    options = options.parse_args()
    settings = Settings.from_env()
    data, rows = rendered(options.rows), rendered(_VALIDATED_ROWS, split="test")
    measured: dict[str, list[dict[str, Any]]] = {way: [] for way in options.ways}
    found = Found("async_validation", ours="task")
    found.beside["runs"] = measured
    with cluster.start(settings=settings), storage.start(settings=settings) as store:
        path = f"{store.bucket('benchmark-validation')}/rows/all.parquet"
        pyarrow.parquet.write_table(rows.to_arrow(), path, filesystem=store.filesystem)

        def once(way: str) -> dict[str, float]:
            run = measure(way, store=store, data=data, epochs=options.epochs)
            measured[way].append(run)
            return {"total": run["total"], "blocked": statistics.median(run["blocked"])}

        paired({way: lambda way=way: once(way) for way in options.ways}, found, options.repeat)
        store.files.rm("benchmark-validation", recursive=True)
    print("\n" + table(measured))
    both = {"task", "inline"} <= set(options.ways)
    found.finish(found.ratio("blocked", "inline") if both else 1.0, json=options.json)


if __name__ == "__main__":
    main()
