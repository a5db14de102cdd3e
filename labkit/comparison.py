"""The same training under six launches, side by side: what starting costs, what training gives.

    result = comparison.run(rows=6_000, epochs=3)
    result                       # a table; result.figure() draws where the seconds go

Each launch is a whole program (``notebooks/engines/*.py``), in a fresh process, from nothing to its end: the
engine's own start (a cluster, a JVM), the launch of the ranks, the epochs. All have the same rows in the same
global batches, the same seed and plain SGD; so all must come to the same weights, and that is checked before
a figure is shown.
"""

import difflib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import datasets, figures
from labkit.errors import RunError, RunFailed
from labkit.inventory import Table
from labkit.processes import Registry
from labkit.settings import Settings
from labkit.stopwatch import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ENGINES", "Comparison", "Engine", "Result", "changed_lines", "run"]

_SCRIPTS = Path(__file__).resolve().parent.parent / "notebooks" / "engines"
_BATCH = 128  # rows between two updates, all ranks together
_TOLERANCE = 1e-3  # largest difference of a weight, as a part of how far the weights have moved
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


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one launch took.

    Attributes:
        engine: its name.
        engine_seconds: from the start of the program until cluster or session are up.
        launch_seconds: from then to the end of the first step.
        rows_per_second: of each epoch, all ranks together.
        total_seconds: from the start of the program to its end.
        peak_bytes: most memory of all its processes at one time (theirs alone, looked at each second).
        gap: largest difference of a weight to the first engine's.
        death: what became of a run whose last rank was killed; None if that was not tried.
    """

    engine: str
    engine_seconds: float
    launch_seconds: float
    rows_per_second: list[float]
    total_seconds: float
    peak_bytes: int
    gap: float = 0.0
    death: dict[str, Any] | None = None

    @property
    def first_step(self) -> float:
        """Seconds from nothing to the first step."""
        return self.engine_seconds + self.launch_seconds


@dataclass(frozen=True)
class Comparison:
    """The results of all launches, checked. Shows itself as a table.

    Attributes:
        rows, epochs: of each run.
        moved: largest distance that a weight has gone in the training.
        results: one for each launch, of all rounds, in the order of the engines.
    """

    rows: int
    epochs: int
    moved: float
    results: list[Result] = field(default_factory=list)

    def table(self) -> Table:
        """One row for each engine; with several rounds the median of each figure."""
        head = (
            "launched by", "first step s", "of it the engine s", "rows/s, epoch 1", "rows/s, last epoch",
            "total s", "peak MB", "lines changed", "one rank killed",
        )  # fmt: skip
        rows = [_row(name, self.of(name)) for name in dict.fromkeys(r.engine for r in self.results)]
        gap = max(result.gap for result in self.results)
        line = (
            f"{self.rows:,} rows, {self.epochs} epochs, global batch {_BATCH}. Equal weights: the largest "
            f"difference is {gap:.1e}, the weights moved by up to {self.moved:.2f}."
        )
        return Table(head, rows, line)

    def of(self, engine: str) -> list[Result]:
        """The results of one engine, one for each round."""
        return [result for result in self.results if result.engine == engine]

    def to_json(self) -> str:
        """All that was measured."""
        return json.dumps(asdict(self), indent=1)

    def figure(self) -> "Figure":
        """For each engine where the seconds went: its own start, the launch, the epochs, the end."""
        import matplotlib.pyplot as plt

        names = list(dict.fromkeys(result.engine for result in self.results))
        parts = {
            "the engine starts": lambda r: r.engine_seconds,
            "ranks start, first step": lambda r: r.launch_seconds,
            "epochs": self._epoch_seconds,
            "the end": lambda r: max(r.total_seconds - r.first_step - self._epoch_seconds(r), 0.0),
        }
        with plt.rc_context(figures.figure_style()):
            drawn, axes = plt.subplots(figsize=(8.5, 0.9 + 0.4 * len(names)), layout="constrained")
            plt.close(drawn)
            ends = [0.0] * len(names)
            for (part, seconds), hatch in zip(parts.items(), ("\\\\\\", "...", "", "///"), strict=True):
                values = [_median(self.of(name), seconds) for name in names]
                axes.barh(names, values, left=ends, height=0.6, hatch=hatch, label=part)
                ends = [end + value for end, value in zip(ends, values, strict=True)]
            for number, end in enumerate(ends):
                axes.annotate(f"{end:.0f} s", (end, number), (4, 0), textcoords="offset points", va="center")
            axes.set(title="from nothing to the end", xlabel="seconds")
            axes.set_xmargin(0.12)
            axes.invert_yaxis()
            drawn.legend(loc="outside lower left", ncols=4)
        return drawn

    def _epoch_seconds(self, result: Result) -> float:
        return sum(self.rows / rate for rate in result.rows_per_second)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def run(
    *,
    rows: int,
    epochs: int = 3,
    engines: Sequence[Engine] = ENGINES,
    rounds: int = 1,
    deaths: Sequence[str] = (),
    settings: Settings | None = None,
    told: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Run each engine, one after the other, and compare.

    Args:
        rows: of rendered digits; what does not fill a global batch of 128 is left out.
        rounds: how often all are run in turn.
        deaths: names of engines that are run once more, with their last rank killed in the first epoch.
        told: called with a line before each run.

    Raises:
        RunFailed: a launch failed, or hung.
        RunError: the weights of two engines differ; or the scripts are not there.
    """
    settings = settings or Settings.from_env()
    _require_scripts(engines)
    base = settings.home / "comparison"
    shutil.rmtree(base, ignore_errors=True)
    rows = _write_rows(base, rows)
    first, found = None, []
    for number in range(rounds):
        for engine in engines:
            told(f"round {number + 1} of {rounds}: {engine.name}")
            folder = base / f"run-{len(found)}"
            measured = _launch(engine, folder, Task(epochs=epochs), settings)
            first = first or folder
            gap = _gap(first, folder, engine.name)
            death = None
            if engine.name in deaths and number == 0:
                told(f"{engine.name}, a rank of which is killed")
                death = _kill(engine, base / f"death-{len(found)}", settings, epochs)
            found.append(Result(engine=engine.name, **measured, gap=gap, death=death))
    moved = _moved(first)
    shutil.rmtree(base, ignore_errors=True)
    return Comparison(rows, epochs, moved, found)


def changed_lines(engine: Engine) -> int:
    """Lines of an engine's script that do not stand in the plain one; what is left out counts, too."""
    plain, own = (_code(each.path) for each in (ENGINES[0], engine))
    matcher = difflib.SequenceMatcher(None, plain, own, autojunk=False)
    return sum(max(b - a, d - c) for kind, a, b, c, d in matcher.get_opcodes() if kind != "equal")


def _code(path: Path) -> list[str]:
    """Its lines that say something: no docstring, no blank line; indentation does not count."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return [line.strip() for line in lines if line.strip()]


def _require_scripts(engines: Sequence[Engine]) -> None:
    missing = [engine.script for engine in engines if not engine.path.is_file()]
    if missing:
        raise RunError(
            "compare engines",
            f"{', '.join(missing)} not found in {_SCRIPTS}",
            "run it in a checkout of the lab: the scripts lie beside the notebooks",
        )


def _write_rows(base: Path, rows: int) -> int:
    """The data, whole and in the parts of two ranks, as Parquet; how many rows there are."""
    count = rows // _BATCH * _BATCH
    if count == 0:
        raise RunError("compare engines", f"{rows} rows fill no batch of {_BATCH}", "rows=6_000 or more")
    base.mkdir(parents=True)
    data = datasets.rendered(count, seed=0)
    data.to_parquet(base / "rows.parquet")
    for rank in (0, 1):
        data[range(rank, count, 2)].to_parquet(base / f"part-{rank}.parquet")
    return count


def _launch(engine: Engine, folder: Path, task: Task, settings: Settings) -> dict[str, Any]:
    """Run a script to its end; what it took. Nothing of it is left running."""
    seconds, peak, log = _watched(engine, folder, task, settings)
    status = json.loads((folder / "status.json").read_text())["status"]
    if status != 0:
        said = log.read_text(errors="replace").strip().splitlines()
        raise RunFailed(
            f"run {engine.script}",
            f"it ended with status {status}: {said[-1][:300] if said else 'no output'}",
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
        "rows_per_second": rates,
        "total_seconds": seconds,
        "peak_bytes": max(peak, max(rank["peak_bytes"] for rank in ranks)),
    }


def _kill(engine: Engine, folder: Path, settings: Settings, epochs: int) -> dict[str, Any]:
    """Run a script whose last rank is killed; what became of it."""
    _watched(engine, folder, Task(epochs=epochs, dies=True), settings)
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


def _watched(engine: Engine, folder: Path, task: Task, settings: Settings) -> tuple[float, int, Path]:
    """(seconds, peak memory in bytes, log) of a script, run in a home of its own."""
    folder.mkdir(parents=True)
    task.write(folder)
    # Ray's sockets lie in the home, and their paths must be short.
    home = settings.home / "cmp"
    registry, own = Registry(home), Registry(settings.home)
    log, lab = folder / "log.txt", f"comparison-{os.getpid()}"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "LABKIT_"))}
    environment |= {"LABKIT_HOME": str(home), "LABKIT_PANEL": "none"}
    own.keep(lab, seconds=2)
    began, clock, peak = time.time(), time.perf_counter(), 0
    try:
        process = own.start(engine.command(folder), role="comparison", lab=lab, log=log, env=environment)
        while True:
            try:
                status = process.wait(_LOOK_EVERY)
                break
            except subprocess.TimeoutExpired:
                peak = max(peak, _memory(own, [lab]) + _memory(registry, registry.labs()))
            if time.perf_counter() - clock > _SECONDS:
                raise RunFailed(f"run {engine.script}", f"it did not end within {_SECONDS} s", f"read {log}")
        seconds = time.perf_counter() - clock
        about = {"status": status, "began": began, "ended": time.time()}
        (folder / "status.json").write_text(json.dumps(about))
    finally:
        registry.stop_all()
        own.disown(lab)
        own.stop(lab)
    return seconds, peak, log


def _memory(registry: Registry, labs: Sequence[str]) -> int:
    """Bytes that these processes have for themselves: resident, and not shared."""
    import psutil

    total = 0
    for lab in labs:
        for process in registry.members(lab):
            try:
                info = process.memory_info()
            except psutil.Error:
                continue  # it ended while we looked
            total += info.rss - getattr(info, "shared", 0)
    return total


def _gap(first: Path, other: Path, name: str) -> float:
    from labkit.torch_states import parameter_distance

    gap, moved = parameter_distance(_weights(first), _weights(other)), _moved(first)
    if not gap <= _TOLERANCE * moved:
        raise RunError(
            f"compare {name} with one process",
            f"their weights differ by up to {gap:.1e}, and the training moved them by {moved:.1e} only: they "
            "did not train the same model",
            "look for another batch size, another order of rows, another seed",
        )
    return gap


def _moved(folder: Path) -> float:
    from labkit.torch_models import mlp
    from labkit.torch_states import parameter_distance

    return parameter_distance(_weights(folder), mlp(seed=0))


def _weights(folder: Path) -> Any:
    import torch

    return torch.load(folder / "weights.pt", weights_only=True)


def _median(results: Sequence[Result], of: Callable[[Result], float]) -> float:
    return statistics.median(of(result) for result in results)


def _row(name: str, results: Sequence[Result]) -> tuple:
    def seconds(of: Callable[[Result], float]) -> str:
        return f"{_median(results, of):.1f}"

    engine = next(engine for engine in ENGINES if engine.name == name)
    return (
        name,
        seconds(lambda r: r.first_step),
        seconds(lambda r: r.engine_seconds),
        f"{_median(results, lambda r: r.rows_per_second[0]):,.0f}",
        f"{_median(results, lambda r: r.rows_per_second[-1]):,.0f}",
        seconds(lambda r: r.total_seconds),
        f"{_median(results, lambda r: r.peak_bytes) / 1e6:,.0f}",
        changed_lines(engine),
        next((_said(r.death) for r in results if r.death), "–"),
    )


def _said(death: dict[str, Any]) -> str:
    if death["status"] == 0:
        return f"began again, done {death['seconds']:.0f} s later"
    again = f", tried {death['attempts']} times" if death["attempts"] > 1 else ""
    return f"ended with an error {death['seconds']:.1f} s later{again}"
