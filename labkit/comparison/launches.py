"""The launches that `labkit.comparison.compare` compares: what each runs, and what it takes.

A launch is a whole program (``notebooks/engines/*.py``) in a fresh process, in a home folder of its own, so
that no cluster that runs already helps it. It is recorded like all that the lab starts, and nothing of it is
left. Of the reader's settings only LABKIT_PRELOAD counts: whether Ray's workers are forked with their imports
done, which is a part of how the lab starts Ray.
"""

import difflib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import datasets
from labkit.comparison.stopwatch import Task
from labkit.errors import RunError, RunFailed
from labkit.settings import CHECKOUT, Settings
from labkit.system import process_info
from labkit.system.process_registry import ProcessRegistry

BATCH = 128  # rows between two updates, all ranks together

_SCRIPTS = CHECKOUT / "notebooks" / "engines"
_LOOK_EVERY = 1.0  # seconds between two looks at the memory
_SECONDS = 240  # until a launch counts as hanging


@dataclass(frozen=True)
class Engine:
    """One of the launches.

    Attributes:
        name: what the table calls it.
        script: its file below ``notebooks/engines``.
        launcher: what stands before the script on the command line, besides python.
    """

    name: str
    script: str
    launcher: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return _SCRIPTS / self.script

    def command(self, folder: Path) -> list[str]:
        return [sys.executable, *self.launcher, str(self.path), str(folder)]


ENGINES = (
    Engine("one process", "plain.py"),
    Engine("torchrun", "ddp.py", ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")),
    Engine("Ray Train, DataLoader", "ray_loader.py"),
    Engine("Ray Train, Ray Data", "ray_data.py"),
    Engine("TorchDistributor, local", "spark_local.py"),
    Engine("TorchDistributor, executors", "spark_executors.py"),
)


def write_rows(base: Path, rows: int) -> int:
    """The data, whole and in the parts of two ranks, as Parquet; how many rows there are."""
    count = rows // BATCH * BATCH
    if count == 0:
        raise RunError("compare engines", f"{rows} rows fill no batch of {BATCH}", "rows=6_000 or more")
    base.mkdir(parents=True)
    data = datasets.rendered(count, seed=0)
    data.to_parquet(base / "rows.parquet")
    for rank in (0, 1):
        data[range(rank, count, 2)].to_parquet(base / f"part-{rank}.parquet")
    return count


def launch(
    engine: Engine,
    folder: Path,
    task: Task,
    settings: Settings,
    *,
    waiting: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Run a script to its end; what it took. Nothing of it is left running.

    Args:
        waiting: called every second until it is done.
    """
    seconds, peak, log = _watched(engine, folder, task, settings, waiting)
    status = json.loads((folder / "status.json").read_text())["status"]
    if status != 0:
        raise RunFailed(
            f"run {engine.script}",
            f"it ended with status {status}: {_end_of(log, lines=1)}",
            f"read {log}",
        )
    ranks = [json.loads(path.read_text()) for path in folder.glob("rank-*.json")]
    began = json.loads((folder / "status.json").read_text())["began"]
    launched = json.loads((folder / "launch.json").read_text())["at"]
    rates = [
        sum(rows for rows, _ in epoch) / max(seconds for _, seconds in epoch)
        for epoch in zip(*(rank["epochs"] for rank in ranks), strict=True)
    ]
    # torchrun starts the script itself, so there the launch is in the ranks' own first lines.
    own_start = 0.0 if engine.launcher or engine.script == "plain.py" else launched - began
    return {
        "engine_seconds": own_start,
        "launch_seconds": max(rank["first_step"] for rank in ranks) - began - own_start,
        "first_wait": max(rank["first_wait"] for rank in ranks),
        "rows_per_second": rates,
        "total_seconds": seconds,
        "peak_bytes": max(peak, max(rank["peak_bytes"] for rank in ranks)),
    }


def kill(
    engine: Engine,
    folder: Path,
    settings: Settings,
    epochs: int,
    *,
    waiting: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Run a script whose last rank is killed; what became of it. `waiting` as in `launch`."""
    _watched(engine, folder, Task(epochs=epochs, dies=True), settings, waiting)
    status = json.loads((folder / "status.json").read_text())
    died = folder / "death.json"
    if not died.is_file():
        raise RunFailed(f"kill a rank of {engine.name}", "none of them came so far", "give it more rows")
    attempts = len(list(folder.glob("attempt-0-*.json"))) or 1
    return {
        "status": status["status"],
        "seconds": status["ended"] - json.loads(died.read_text())["at"],
        "attempts": attempts,
    }


def changed_lines(engine: Engine) -> int:
    """Lines of an engine's script that do not stand in the plain one; what is left out counts, too."""
    plain, own = (_code(each.path) for each in (ENGINES[0], engine))
    matcher = difflib.SequenceMatcher(None, plain, own, autojunk=False)
    return sum(max(b - a, d - c) for kind, a, b, c, d in matcher.get_opcodes() if kind != "equal")


def _code(path: Path) -> list[str]:
    """Its lines that say something: no docstring, no blank line; indentation does not count."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return [line.strip() for line in lines if line.strip()]


def require_scripts(engines: Sequence[Engine]) -> None:
    missing = [engine.script for engine in engines if not engine.path.is_file()]
    if missing:
        raise RunError(
            "compare engines",
            f"{', '.join(missing)} not found in {_SCRIPTS}",
            "run it in a checkout of the lab: the scripts lie beside the notebooks",
        )


def _watched(
    engine: Engine, folder: Path, task: Task, settings: Settings, waiting: Callable[[], None]
) -> tuple[float, int, Path]:
    """(seconds, peak memory in bytes, log) of a script, run in a home of its own."""
    folder.mkdir(parents=True)
    task.write(folder)
    # Ray's sockets lie in the home, and their paths must be short.
    home = settings.home / "cmp"
    registry, own = ProcessRegistry(home), ProcessRegistry(settings.home)
    log, lab = folder / "log.txt", f"comparison-{os.getpid()}"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "LABKIT_"))}
    environment |= {"LABKIT_HOME": str(home), "LABKIT_PANEL": "none"}
    environment |= {"LABKIT_PRELOAD": str(int(settings.preload))}
    own.start_watchdog(lab, seconds=2)
    began, clock, peak = time.time(), time.perf_counter(), 0
    try:
        process = own.start(engine.command(folder), role="comparison", group_id=lab, log=log, env=environment)
        while True:
            try:
                status = process.wait(_LOOK_EVERY)
                break
            except subprocess.TimeoutExpired:
                waiting()
                peak = max(peak, _memory(own, [lab]) + _memory(registry, registry.groups()))
            if time.perf_counter() - clock > _SECONDS:
                fact = f"it did not end within {_SECONDS} s; it said last: {_end_of(log, lines=4)}"
                raise RunFailed(f"run {engine.script}", fact, f"read {log}")
        seconds = time.perf_counter() - clock
        about = {"status": status, "began": began, "ended": time.time()}
        (folder / "status.json").write_text(json.dumps(about))
    finally:
        registry.stop_all()
        own.disown(lab)
        own.stop(lab)
        shutil.rmtree(home, ignore_errors=True)  # the next one is to find nothing, and Ray's token is in it
    return seconds, peak, log


def _end_of(log: Path, *, lines: int) -> str:
    """The last lines of a log in one, 300 characters of each."""
    said = log.read_text(errors="replace").strip().splitlines()[-lines:]
    return " · ".join(line.strip()[:300] for line in said) or "no output"


def _memory(registry: ProcessRegistry, labs: Sequence[str]) -> int:
    """Bytes of memory that these processes take together."""
    return sum(process_info.memory(process) for lab in labs for process in registry.members(lab))
