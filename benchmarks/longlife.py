"""A day of lessons in one kernel and one cluster, compressed: does anything grow without bound?

    .venv/bin/python -m benchmarks longlife [--fits 300] [--sweeps 50] [--stores 200] [--figure FILE]

A Jupyter kernel is driven as JupyterLab does it. In one cluster its cells run, in a random order that is the
same each time (`--seed`):

- fits: two workers, two epochs, a checkpoint after each, a `TrainPanel` with its widgets. One in ten fails;
- sweeps: four trials that report three numbers each, with a `SweepPanel`;
- stores: `storage.start`, an upload of eight images, their deletion, `stop`; every other one while a second
  handle is open.

Every few cells it measures, after a garbage collection: memory (PSS; of the forkserver RSS), open file
descriptors and threads of the kernel and of each program of the cluster; the kernel's children; the panels
and widgets that are still in the kernel's memory; files and bytes under LABKIT_HOME. The table
has the medians of the first and of the last tenth of the measurements, and what each figure grew by per 100
fits in the second half. The last line is ``longlife: ratio=…``, the largest last / first of what is the
lab's: the kernel's memory, descriptors and threads, the forkserver's memory and threads. Ctrl-C ends it.
"""

import collections
import contextlib
import gc
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks._paired import Found, parser
from benchmarks.growth import drawn
from labkit.display.cards import Table
from labkit.system import overview, process_info
from labkit.system.process_registry import ProcessRegistry

_LOOKS = 60  # measurements
_FAILS = 10  # each tenth fit does
_OURS = ("kernel, MB", "kernel, descriptors", "kernel, threads", "forkserver, MB", "forkserver, threads")

_SETUP = """
import os, tempfile
import ray.train, torch
from ray import tune
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from benchmarks import longlife
from labkit import cluster, datasets, storage
from labkit.settings import Settings
from labkit.storage import upload
from labkit.train import TrainPanel
from labkit.tune import SweepPanel

settings = Settings.from_env()
lab = cluster.start(settings=settings, cpus_per_node=4)
images = datasets.rendered(8, seed=0)
folder = str(settings.home / "runs" / "longlife")

def loop(config):
    model = prepare_model(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for _ in panel.steps(range(4), epoch=epoch, epochs=2):
            loss = model(torch.ones(16, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            panel.log(loss=loss.item())
        if config["fails"]:
            raise ValueError("one in ten fails")
        with tempfile.TemporaryDirectory() as state:
            torch.save(model.state_dict(), f"{state}/state.pt")
            ray.train.report({"loss": loss.item()}, checkpoint=Checkpoint(state))

def climb(config):
    for step in range(3):
        tune.report({"score": config["x"] * step})
"""
_FIT = """
panel = TrainPanel("longlife-fit", dataset=images, epochs=2)
trainer = TorchTrainer(
    loop,
    train_loop_config={"fails": FAILS},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(
        name=panel.run_id, storage_path=folder, callbacks=[panel.callback()],
        checkpoint_config=CheckpointConfig(num_to_keep=1),
    ),
)
with panel.watch(trainer):
    result = trainer.fit()
"""
_SWEEP = """
panel = SweepPanel("longlife-sweep")
tuner = tune.Tuner(
    climb,
    param_space={"x": tune.uniform(0, 1)},
    tune_config=tune.TuneConfig(metric="score", mode="max", num_samples=4, reuse_actors=True),
    run_config=tune.RunConfig(name=panel.run_id, storage_path=folder, callbacks=[panel.callback()]),
)
with panel.watch(tuner):
    results = tuner.fit()
"""
_STORE = """
with storage.start(settings=settings) as store:
    sent = upload(images, store, "longlife")
    store.files.rm("longlife", recursive=True)
"""
_TWO_HANDLES = """
with storage.start(bucket="outer", settings=settings) as outer:
    with storage.start(settings=settings) as store:
        sent = upload(images, store, "longlife")
    outer.files.rm("longlife", recursive=True)
"""
_LOOK = "print(longlife.look(settings.home))"


def look(home: Path) -> str:
    """What the lab takes now, as JSON; called in the kernel."""
    gc.collect()
    figures, me = {}, psutil.Process()
    programs: dict[str, list[psutil.Process]] = {"kernel": [me]}
    for (_, program), processes in overview.programs().items():
        programs.setdefault(program, []).extend(processes)
    for program, processes in programs.items():
        figures[f"{program}, MB"] = sum(map(process_info.memory, processes)) / 1e6
        if program == "forkserver":  # its PSS depends on how many of its forks live
            figures["forkserver, MB"] = _total(processes, lambda one: one.memory_info().rss) / 1e6
        figures[f"{program}, descriptors"] = _total(processes, psutil.Process.num_fds)
        figures[f"{program}, threads"] = _total(processes, psutil.Process.num_threads)
        figures[f"{program}, processes"] = len(processes)
    figures["kernel, children"] = len(me.children(recursive=True))
    from ipywidgets import Widget

    from labkit.panel.base import LivePanel

    objects = gc.get_objects()
    figures["kernel, objects"] = len(objects)
    for name, kind in (("panels", LivePanel), ("widgets", Widget)):
        figures[f"kernel, {name}"] = sum(issubclass(type(one), kind) for one in objects)
    for top in sorted(path for path in home.iterdir() if path.is_dir()):
        sizes = [_size(Path(folder, name)) for folder, _, names in os.walk(top) for name in names]
        figures[f"home/{top.name}, files"], figures[f"home/{top.name}, MB"] = len(sizes), sum(sizes) / 1e6
    return json.dumps(figures)


def _total(processes: list[psutil.Process], count: Any) -> int:
    total = 0
    for process in processes:
        try:
            total += count(process)
        except psutil.Error:  # it has just ended
            continue
    return total


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # it has just been removed
        return 0


class Kernel:
    """A kernel with a home of its own; in a ``with`` block, after which nothing of it runs."""

    def __init__(self, home: Path) -> None:
        from jupyter_client.manager import run_kernel

        environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "LABKIT_"))}
        environment |= {"LABKIT_HOME": str(home), "OMP_NUM_THREADS": "1", "LABKIT_PANEL": "widgets"}
        self._home, self._running = home, run_kernel(kernel_name="python3", env=environment)

    def __enter__(self) -> "Kernel":
        self._client = self._running.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._running.__exit__(*error)
        ProcessRegistry(self._home).stop_all()

    def run(self, code: str, *, fails: bool = False) -> str:
        """Run a cell; return what it printed."""
        printed = []

        def take(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])

        try:
            reply = self._client.execute_interactive(code, timeout=300, output_hook=take)["content"]
        except TimeoutError:
            state = "still runs it" if self._client.is_alive() else "has died"
            print(f"after 300 s the kernel {state}, so it is the last one:{code}", *printed)
            raise
        if (reply["status"] == "error") != fails:
            raise SystemExit("\n".join([code, *printed, *reply.get("traceback", ["it did not fail"])]))
        return "".join(printed)

    def look(self) -> dict[str, float]:
        """What the lab takes now."""
        return json.loads(self.run(_LOOK).splitlines()[-1])


def live(kernel: Kernel, work: list[str]) -> Iterator[dict[str, float]]:
    """Run all cells; yield the measurements, each with the number of fits and the seconds until then."""
    kernel.run(_SETUP)
    counts, looks, began = collections.Counter(), 0, time.monotonic()
    for done, kind in enumerate(work, start=1):
        number = counts[kind]
        counts[kind] += 1
        fails = kind == "fit" and number % _FAILS == _FAILS - 1
        store = _TWO_HANDLES if number % 2 else _STORE
        kernel.run(
            {"fit": _FIT.replace("FAILS", str(fails)), "sweep": _SWEEP, "store": store}[kind], fails=fails
        )
        if done * _LOOKS // len(work) > looks:
            looks += 1
            found = kernel.look() | {"fits": counts["fit"], "seconds": time.monotonic() - began}
            told = " · ".join(f"{name} {found[name]:.0f}" for name in ("seconds", "fits", *_OURS))
            print(f"  {done} of {len(work)}: {told}", flush=True)
            yield found
    kernel.run("lab.stop()")


def trend(samples: list[dict[str, float]], name: str) -> tuple[float, float, float]:
    """Of a figure: its medians in the first and in the last tenth, and its slope per 100 fits.

    The slope is that of a line through the second half, by least squares.
    """
    values, fits = [one.get(name, 0.0) for one in samples], [one["fits"] for one in samples]
    tenth, half = max(1, len(samples) // 10), len(samples) // 2
    slope = statistics.linear_regression(fits[half:], values[half:]).slope if len(set(fits[half:])) > 1 else 0
    return statistics.median(values[:tenth]), statistics.median(values[-tenth:]), 100 * slope


def draw(samples: list[dict[str, float]], figure: Path) -> None:
    """Memory of the lab's and of Ray's processes, descriptors, threads, files and bytes, over the fits."""
    rays = ("gcs_server", "raylet", "agents", "dashboard", "log_monitor")
    axes = {
        "MB, the lab": ("MB", "kernel", "forkserver", "worker"),
        "MB, Ray's head": ("MB", *rays),
        "open descriptors": ("descriptors", "kernel", "forkserver", *rays[:-1]),
        "threads": ("threads", "kernel", "forkserver", *rays[:-1]),
        "files under LABKIT_HOME": ("files", "home/runs", "home/ray", "home/objects"),
        "MB under LABKIT_HOME": ("MB", "home/runs", "home/ray", "home/objects"),
    }
    with drawn(figure, 2, 3) as grid:
        for axis, (title, (unit, *names)) in zip(grid.flat, axes.items(), strict=True):
            for name in names:
                if seen := [one for one in samples if f"{name}, {unit}" in one]:
                    values = [one[f"{name}, {unit}"] for one in seen]
                    axis.plot([one["fits"] for one in seen], values, label=name)
            axis.set(title=title, xlabel="fits", ylim=(0, None))
            axis.legend(fontsize=8)


def main() -> None:
    options = parser(__doc__, repeat=1)
    for name, number in (("fits", 300), ("sweeps", 50), ("stores", 200), ("seed", 0)):
        options.add_argument(f"--{name}", type=int, default=number, help=f"default {number}")
    options.add_argument("--figure", type=Path, help="draw it into this file, .svg or .png")
    options = options.parse_args()
    work = ["fit"] * options.fits + ["sweep"] * options.sweeps + ["store"] * options.stores
    random.Random(options.seed).shuffle(work)
    found = Found("longlife", ours="")
    folder = tempfile.TemporaryDirectory(prefix="lk", ignore_cleanup_errors=True)
    samples = []
    with folder as home, Kernel(Path(home)) as kernel, contextlib.suppress(KeyboardInterrupt, TimeoutError):
        for sample in live(kernel, work):
            samples.append(sample)
    if not samples:
        raise SystemExit("it ended before the first measurement")
    names = sorted({name for one in samples for name in one} - {"fits", "seconds"})
    trends = {name: trend(samples, name) for name in names}
    rows = [(name, *(f"{value:,.1f}" for value in trends[name])) for name in names]
    print(Table(("", "first tenth", "last tenth", "per 100 fits"), rows))
    found.beside |= {"samples": samples, "trends": trends}
    if options.figure:
        draw(samples, options.figure)
    found.finish(max(trends[name][1] / trends[name][0] for name in _OURS), json=options.json, unit="see name")


if __name__ == "__main__":
    main()
