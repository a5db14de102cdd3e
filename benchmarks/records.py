"""Ten thousand run records: what it takes to list, find, compare and export them.

    .venv/bin/python -m benchmarks records [--count 10000] [--exported 300] [--repeat 3] [--json FILE]

The records have settings, six epochs, versions, machine and the code of a file, 9 kB each; ten names, as many
panels have them. All ways are measured in one process after a warm-up, in turn. *CPU* is what this process
had of a core; work next to it changes that little. *Index rebuilt* is the first listing after the index was
deleted. TensorBoard and MLflow get the newest `--exported`, and each value is read back: TensorBoard's from
the events of tensorboardX, MLflow's by its client. The last line is ``records: ratio=…``: the CPU seconds of
the whole table over one second.
"""

import inspect
import random
import statistics
import struct
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._paired import Found, measure, parser
from labkit import runs
from labkit.machine import installed_versions, this_host
from labkit.models import torch as training
from labkit.runs.record import RunRecord, folder_of, read

_EPOCHS = 6


def make(home: Path, count: int) -> list[str]:
    """Write `count` records into a home, and return their ids, the newest last."""
    numbers, code = random.Random(0), inspect.getsource(training)
    about = {"versions": installed_versions(), "host": this_host(), "code": code, "engine": "Ray Train"}
    began, ids = datetime(2026, 1, 1, tzinfo=UTC), []
    for number in range(count):
        started = began + timedelta(minutes=number)
        losses = [2 / (epoch + 1) + numbers.random() for epoch in range(_EPOCHS)]
        history = [{"epoch": n, "loss": loss, "accuracy": 1 / (1 + loss)} for n, loss in enumerate(losses)]
        record = RunRecord(
            name=f"experiment-{number % 10}", run_id=f"{started:%Y%m%d-%H%M%S}-{number:06x}",
            state="failed" if number % 20 == 19 else "finished", started_at=started.isoformat(), workers=2,
            config={"lr": 10 ** numbers.uniform(-4, -1), "seed": number % 5, "batch_size": 64,
                    "model": {"width": 8 * numbers.randint(1, 8), "depth": numbers.randint(1, 4)}},
            dataset="digits", rows=1437, seconds_total=20 + numbers.random(), seconds_to_start=2.0,
            seconds_per_epoch=[3.0] * _EPOCHS, rows_per_second=9000 + numbers.random(), history=history,
            metrics={name: value for name, value in history[-1].items() if name != "epoch"},
            seconds={"start": 2.0, "training": 18.0}, checkpoints=2, tags=["paper"] * (number % 100 == 0),
            checkpoint=f"runs/{number}/checkpoint_5", storage_path=f"runs/{number}", **about,
        )  # fmt: skip
        record.write(folder_of(home, record.name, record.run_id))
        ids.append(record.run_id)
    return ids


def ways(home: Path, ids: list[str]) -> dict[str, Any]:
    """What a reader does with records, each as a function that returns its seconds."""

    def timed(work: Any) -> Any:
        def run() -> dict[str, float]:
            begin, busy = time.perf_counter(), time.process_time()
            work()
            return {"seconds": time.perf_counter() - begin, "CPU": time.process_time() - busy}

        return run

    def rebuilt() -> None:
        (home / "runs" / ".index.json").unlink()
        runs.table(home, last=1)

    columns = ["id", "lr", "model.width", "loss", "seed"]
    done = {
        "table()": lambda: runs.table(home),
        "table(last=20)": lambda: runs.table(home, last=20),
        "table(columns=…), five": lambda: runs.table(home, columns=columns),
        "table(name=…, seed=…)": lambda: runs.table(home, name="experiment-3", seed=3),
        'table(tag="paper")': lambda: runs.table(home, tag="paper"),
        'best("loss")': lambda: runs.best("loss", home, mode="min"),
        "latest()": lambda: runs.latest(home=home),
        "get(id)": lambda: runs.get(ids[0], home),
        "compare(id, id)": lambda: runs.compare(ids[0], ids[-2], home),
        "table(columns=…) from the files": lambda: runs.table(home, columns=["versions.torch"]),
        "index rebuilt": rebuilt,
    }  # fmt: skip
    return {name: timed(work) for name, work in done.items()}


Values = dict[str, dict[str, list[tuple[int, float]]]]  # run id → metric → (epoch, value)


def recorded(home: Path, last: int) -> Values:
    """What the newest records have, from their files."""
    found = [read(folder) for folder in runs.table(home, last=last, columns=["folder"])["folder"]]
    return {
        run.run_id: {m: [(one["epoch"], one[m]) for one in run.history] for m in run.metrics} for run in found
    }


def from_tensorboard(folder: Path) -> Values:
    """What TensorBoard's files have: length (8 bytes), checksum (4), event, checksum (4), and so on."""
    from tensorboardX.proto.event_pb2 import Event

    values: Values = {}
    for file in folder.glob("*/*/events.*"):
        content, place = file.read_bytes(), 0
        while place < len(content):
            end = place + 12 + struct.unpack_from("<Q", content, place)[0]
            event, place = Event.FromString(content[place + 12 : end]), end + 4
            for one in event.summary.value:
                if one.HasField("simple_value") and not one.metadata.plugin_data.plugin_name:
                    metrics = values.setdefault(file.parent.name, {})
                    metrics.setdefault(one.tag, []).append((event.step, one.simple_value))
    return values


def from_mlflow(folder: Path) -> Values:
    """What MLflow's client finds in its store."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    values: Values = {}
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id], max_results=50_000):
            history = {m: client.get_metric_history(run.info.run_id, m) for m in run.data.metrics}
            values[run.info.run_name] = {
                m: [(one.step, one.value) for one in all] for m, all in history.items()
            }
    return values


def export(home: Path, folder: Path, kind: str, last: int) -> dict[str, float]:
    """Export the newest records, read all values back, and return the seconds of the export.

    Raises:
        AssertionError: a value is another one, or is missing.
    """
    begin, busy = time.perf_counter(), time.process_time()
    (runs.to_tensorboard if kind == "TensorBoard" else runs.to_mlflow)(folder, home, last=last)
    seconds = {"export": time.perf_counter() - begin, "CPU of the export": time.process_time() - busy}
    wanted = recorded(home, last)
    if kind == "TensorBoard":
        wanted = {
            run: {m: [(n, float(np.float32(v))) for n, v in all] for m, all in metrics.items()}
            for run, metrics in wanted.items()
        }
    there = (from_tensorboard if kind == "TensorBoard" else from_mlflow)(folder)
    count = sum(len(all) for metrics in wanted.values() for all in metrics.values())
    assert there == wanted, f"{kind} has other values than the records"
    print(f"{kind}: all {count:,} values of {last:,} records were read back, and are equal", flush=True)
    return seconds


def main() -> None:
    options = parser(__doc__, repeat=3)
    options.add_argument("--count", type=int, default=10_000, help="records (default 10,000)")
    options.add_argument("--exported", type=int, default=300, help="of them (default 300)")
    options = options.parse_args()
    found = Found("records", ours="table()")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        ids = make(home, options.count)
        before = runs.table(home)
        (home / "runs" / ".index.json").unlink()
        assert runs.table(home).equals(before), "a rebuilt index has other records"
        measure(ways(home, ids), found, options.repeat)
        for kind in ("TensorBoard", "MLflow"):
            export(home, home / kind, kind, 1)  # imports, and MLflow's new database
            found.add(kind, export(home, home / kind, kind, options.exported))
    found.finish(statistics.median(found.seconds["CPU"]["table()"]), json=options.json)


if __name__ == "__main__":
    main()
