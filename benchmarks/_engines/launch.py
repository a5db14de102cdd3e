"""Runs one of the programs in `programs` from start to end, and measures it.

A program runs in a new process with a lab home of its own, so no cluster that runs already helps it. It is
recorded like everything that the lab starts, and nothing of it is left. Of the settings only LABKIT_PRELOAD
reaches it: whether Ray's workers are forked from a process that has done their imports.
"""

import contextlib
import difflib
import itertools
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from benchmarks._digits import digits
from benchmarks._engines.stopwatch import Stopwatch
from benchmarks._programs import lab_environment, memory
from labkit.errors import LabError, RunFailed
from labkit.interrupts import wait_until
from labkit.local.lab import Lab
from labkit.settings import Settings

BATCH = 128  # rows of one update, all ranks together

_PROGRAMS = Path(__file__).resolve().parent / "programs"
_LOOK_EVERY = 0.5  # seconds between two measurements of the memory
_TIMEOUT = 240  # seconds


@dataclass(frozen=True)
class Engine:
    """One program, and how it is launched.

    Attributes:
        name: its name in the table.
        script: its file below ``programs``, or the absolute path of your own.
        launcher: arguments of python before the script.
    """

    name: str
    script: str
    launcher: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return _PROGRAMS / self.script

    @property
    def changed_lines(self) -> int:
        """Lines that differ from the plain program, removed ones included; docstrings do not count."""
        matcher = difflib.SequenceMatcher(None, _code(ENGINES[0].path), _code(self.path), autojunk=False)
        changed = 0
        for change, begin, end, own_begin, own_end in matcher.get_opcodes():
            if change != "equal":
                changed += max(end - begin, own_end - own_begin)
        return changed


def _code(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return [line.strip() for line in lines if line.strip()]


ENGINES = (
    Engine("one process", "plain.py"),
    Engine("torchrun", "ddp.py", ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")),
    Engine("Ray Train, DataLoader", "ray_loader.py"),
    Engine("Ray Train, Ray Data", "ray_data.py"),
    Engine("TorchDistributor, local", "spark_local.py"),
    Engine("TorchDistributor, executors", "spark_executors.py"),
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """The measurements of one run.

    Attributes:
        engine: its name.
        engine_seconds: from the start of the program until cluster or session are up.
        launch_seconds: from then to the end of the first step.
        first_wait: seconds of the first epoch until its first step was done; also part of `launch_seconds`.
        rows_per_second: of each epoch, all ranks together.
        total_seconds: from the start of the program to its end.
        peak_bytes: most memory of all its processes together, measured twice a second.
        changed_lines: lines of the program that differ from the plain one.
        weight_difference: largest difference of a weight to the first engine's.
        death: what happened when the last rank was killed; None if that was not tried.
    """

    engine: str
    engine_seconds: float
    launch_seconds: float
    first_wait: float = 0.0
    rows_per_second: list[float]
    total_seconds: float
    peak_bytes: int
    changed_lines: int
    weight_difference: float = 0.0
    death: dict[str, Any] | None = None

    @property
    def first_step(self) -> float:
        """Seconds from the start of the program to the end of the first step."""
        return self.engine_seconds + self.launch_seconds


@dataclass(frozen=True)
class _Ended:
    status: int
    began: float
    ended: float
    peak_bytes: int
    log: Path


@contextlib.contextmanager
def workplace(settings: Settings) -> Iterator[Path]:
    """A folder for one comparison, ``HOME/cmp/NUMBER``: the first one that no other comparison has locked.

    What an earlier comparison left there is removed. The path is short because Ray's sockets are below it.
    """
    base = settings.make_home() / "cmp"
    base.mkdir(exist_ok=True)
    for number in itertools.count():
        lock = FileLock(base / f"{number}.lock")
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=0)
            break
    try:
        shutil.rmtree(base / str(number), ignore_errors=True)
        (base / str(number)).mkdir()
        yield base / str(number)
    finally:
        lock.release()


def write_rows(folder: Path, rows: int) -> int:
    """Write digits as Parquet, complete and as the parts of two ranks; return the number of rows."""
    count = rows // BATCH * BATCH
    if count == 0:
        raise LabError("compare engines", f"{rows} rows fill no batch of {BATCH}", "rows=6_000 or more")
    data = digits(count)
    data.to_parquet(folder / "rows.parquet")
    for rank in (0, 1):
        data[range(rank, count, 2)].to_parquet(folder / f"part-{rank}.parquet")
    return count


def launch(engine: Engine, folder: Path, settings: Settings, *, epochs: int) -> Result:
    """Run a program to its end and measure it.

    Args:
        folder: of the run; the folder above it has the rows.

    Raises:
        RunFailed: it failed, or did not end in time.
    """
    Stopwatch.prepare(folder, epochs=epochs)
    run = _run(engine, folder, settings)
    if run.status != 0:
        fact = f"it ended with status {run.status}: {_last_lines(run.log, 1)}"
        raise RunFailed(f"run {engine.script}", fact, f"read {run.log}")
    ranks = [json.loads(path.read_text()) for path in folder.glob("rank-*.json")]
    launched = json.loads((folder / "launch.json").read_text())["at"]
    # torchrun starts the script itself, so there the launch is among the first lines of the ranks.
    engine_seconds = 0.0 if engine.launcher or engine.script == "plain.py" else launched - run.began
    return Result(
        engine=engine.name,
        engine_seconds=engine_seconds,
        launch_seconds=max(rank["first_step"] for rank in ranks) - run.began - engine_seconds,
        first_wait=max(rank["first_wait"] for rank in ranks),
        rows_per_second=[
            sum(rows for rows, _ in epoch) / max(seconds for _, seconds in epoch)
            for epoch in zip(*(rank["epochs"] for rank in ranks), strict=True)
        ],
        total_seconds=run.ended - run.began,
        peak_bytes=run.peak_bytes,
        changed_lines=engine.changed_lines,
    )


def kill_rank(engine: Engine, folder: Path, settings: Settings, *, epochs: int) -> dict[str, Any]:
    """Run a program whose last rank is killed in its first epoch. Arguments as in `launch`.

    Returns:
        Its exit status, the seconds from the death to the end, and how often rank 0 was started.
    """
    Stopwatch.prepare(folder, epochs=epochs, kill_last_rank=True)
    run = _run(engine, folder, settings)
    death = folder / "death.json"
    if not death.is_file():
        raise RunFailed(
            f"kill a rank of {engine.name}", "no rank reached its sixth step", "give it more rows"
        )
    seconds = run.ended - json.loads(death.read_text())["at"]
    attempts = len(list(folder.glob("attempt-0-*.json"))) or 1
    return {"status": run.status, "seconds": seconds, "attempts": attempts}


def _run(engine: Engine, folder: Path, settings: Settings) -> _Ended:
    home = folder.parent / "home"
    log = folder / "log.txt"
    group = f"comparison-{secrets.token_hex(4)}"
    environment = lab_environment(home)
    del environment["OMP_NUM_THREADS"]  # each launcher sets it in its own way
    path = [str(_PROGRAMS.parents[2]), *filter(None, [environment.get("PYTHONPATH")])]
    environment |= {"PYTHONPATH": os.pathsep.join(path), "LABKIT_PRELOAD": str(int(settings.preload))}
    command = [sys.executable, *engine.launcher, str(engine.path), str(folder)]
    Lab(settings.home).use(group, keep=2)
    began = time.time()
    peak = 0
    try:
        process = Lab(settings.home).start(command, group=group, log=log, env=environment)
        while True:
            if wait_until(lambda: process.status() is not None, seconds=_LOOK_EVERY, check=int):
                return _Ended(process.status(), began, time.time(), peak, log)
            members = Lab(settings.home).running(group) + Lab(home).running()
            peak = max(peak, sum(memory(member.process) for member in members))
            if time.time() - began > _TIMEOUT:
                fact = f"it did not end within {_TIMEOUT} s; its last lines: {_last_lines(log, 4)}"
                raise RunFailed(f"run {engine.script}", fact, f"read {log}")
    finally:
        Lab(home).stop()
        Lab(settings.home).stop(group)
        shutil.rmtree(home, ignore_errors=True)  # the next program starts from nothing; Ray's token was here


def _last_lines(log: Path, count: int) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()[-count:]
    return " · ".join(line.strip()[:300] for line in lines) or "no output"
