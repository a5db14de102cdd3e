"""From `fit()` to the first report and to its end: the lab, Ray as pip installs it, torchrun.

    .venv/bin/python -m benchmarks startup [--rounds 3] [--runs 3] [--json FILE]

The work is next to none: two workers report once (torchrun: two processes do one all-reduce), so that what
is measured is the start. In each round all ways come in turn, each in a process of its own:

- lab: `cluster.start()`, then `TorchTrainer.fit()` several times in this kernel;
- lab, no preload: the same with LABKIT_PRELOAD=0;
- stock: `ray.init()`, then the same fits. No setting of the lab; on its PYTHONPATH lies what pip installs
  beside JupyterLab by default (a jsonschema that imports rfc3987-syntax, and lark), in a folder of its own;
- torchrun: `torchrun --standalone --nproc-per-node 2`, once.

The figures are medians, with the smallest and largest; a ratio is the lab's seconds over the other's in the
same round. The last line is ``startup: ratio=…``, that of the whole first `fit()` against stock.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from labkit.settings import Settings

__all__ = ["main"]

_STOCK = ("jsonschema[format-nongpl]", "lark", "rfc3987-syntax")

_FITS = """
import json, os, sys, time
folder, runs = sys.argv[1], int(sys.argv[2])
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def loop():
    import ray.train
    ray.train.report({"one": 1})
    open(f"{folder}/reported", "w").write(repr(time.time()))

for number in range(runs):
    began = time.time()
    config = RunConfig(name=f"run-{number}-{os.getpid()}", storage_path=f"{folder}/runs")
    TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=2), run_config=config).fit()
    whole = time.time() - began
    print("seen", json.dumps({"first": float(open(f"{folder}/reported").read()) - began, "whole": whole}))
"""
_LAB = """
import time
began = time.time()
from labkit import cluster
lab = cluster.start()
print("cluster", time.time() - began)
{fits}
lab.stop()
"""
_STOCK_RAY = """
import time
began = time.time()
import ray
ray.init()
print("cluster", time.time() - began)
{fits}
ray.shutdown()
"""
_ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
assert one.item() == 2
dist.destroy_process_group()
"""


def stock_packages(settings: Settings) -> Path:
    """A folder with what pip installs beside JupyterLab where nobody holds jsonschema back; made once."""
    folder = settings.home / "stock-packages"
    if not folder.exists():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(part), *_STOCK]
        if subprocess.run(command).returncode:
            raise SystemExit(
                f"could not install {', '.join(_STOCK)}: stock Ray is measured with them\n"
                "  fix: this benchmark needs a network, or a pip cache, once"
            )
        part.rename(folder)
    return folder


def seen(code: str, folder: Path, runs: int, environment: dict[str, str]) -> dict[str, list[float]]:
    """{what: seconds of each run} of a process that runs `code`."""
    command = [sys.executable, "-W", "ignore", "-c", code, str(folder), str(runs)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"a way failed:\n{done.stdout}\n{done.stderr}")
    found: dict[str, list[float]] = {"cluster": [], "first": [], "whole": []}
    for line in done.stdout.splitlines():
        if line.startswith("cluster "):
            found["cluster"].append(float(line.split()[1]))
        if line.startswith("seen "):
            for name, seconds in json.loads(line.removeprefix("seen ")).items():
                found[name].append(seconds)
    return found


def torchrun(folder: Path, environment: dict[str, str]) -> float:
    """Seconds of torchrun with two processes that do one all-reduce."""
    script = folder / "all_reduce.py"
    script.write_text(_ALL_REDUCE)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(script),
    ]
    began = time.time()
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300)
    return time.time() - began


def measure(rounds: int, runs: int, settings: Settings) -> dict[str, list[dict[str, list[float]]]]:
    """{way: what was seen, a dict for each round}."""
    stock = stock_packages(settings)
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "LABKIT_"))}
    found: dict[str, list[dict[str, list[float]]]] = {}
    for number in range(rounds):
        home = Path(tempfile.mkdtemp(prefix="lkb"))
        ours = {**plain, "LABKIT_HOME": str(home), "LABKIT_PANEL": "none", "OMP_NUM_THREADS": "1"}
        theirs = {**plain, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(stock)}
        ways = {
            "lab": lambda ours=ours, home=home: seen(_LAB.format(fits=_FITS), home, runs, ours),
            "stock": lambda theirs=theirs, home=home: seen(_STOCK_RAY.format(fits=_FITS), home, runs, theirs),
            "lab, no preload": lambda ours=ours, home=home: seen(
                _LAB.format(fits=_FITS), home, runs, {**ours, "LABKIT_PRELOAD": "0"}
            ),
            "torchrun": lambda ours=ours, home=home: {"whole": [torchrun(home, ours)]},
        }
        for way in list(ways)[:: 1 if number % 2 == 0 else -1]:
            found.setdefault(way, []).append(ways[way]())
            print(f"round {number + 1} of {rounds}: {way}", _short(found[way][-1]), flush=True)
        shutil.rmtree(home, ignore_errors=True)
    return found


def _short(one: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {' '.join(f'{s:.1f}' for s in found)} s" for name, found in one.items())


def table(found: dict[str, list[dict[str, list[float]]]]) -> dict[str, dict[str, list[float]]]:
    """{figure: {way: seconds, one for each round}}: of the first fit, and the median of the later ones."""
    figures: dict[str, dict[str, list[float]]] = {}
    for way, rounds in found.items():
        for one in rounds:
            for name, figure in (("first", "to the first report"), ("whole", "whole fit")):
                runs = one.get(name, [])
                if runs:
                    figures.setdefault(f"{figure}, first run", {}).setdefault(way, []).append(runs[0])
                if len(runs) > 1:
                    later = statistics.median(runs[1:])
                    figures.setdefault(f"{figure}, later runs", {}).setdefault(way, []).append(later)
            if one.get("cluster"):
                figures.setdefault("cluster start", {}).setdefault(way, []).append(one["cluster"][0])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each way is measured")
    parser.add_argument("--runs", type=int, default=3, help="fits in each process")
    parser.add_argument("--json", type=Path, help="also write all seconds into this file")
    options = parser.parse_args()
    found = measure(options.rounds, options.runs, Settings.from_env())
    figures = table(found)
    for figure, ways in figures.items():
        print(f"\n{figure}: seconds, median (smallest to largest), ratio of the lab")
        for way, seconds in ways.items():
            spread = f"{statistics.median(seconds):6.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
            ratios = [ours / other for ours, other in zip(figures[figure]["lab"], seconds, strict=True)]
            print(f"  {way:16} {spread:24} {statistics.median(ratios):.2f}")
    first = figures["whole fit, first run"]
    ratio = statistics.median(a / b for a, b in zip(first["lab"], first["stock"], strict=True))
    if options.json:
        host = {"cores": os.cpu_count(), "python": sys.version.split()[0]}
        options.json.write_text(
            json.dumps({"benchmark": "startup", "host": host, "seconds": found}, indent=1)
        )
    print(f"\nstartup: ratio={ratio:.2f}")


if __name__ == "__main__":
    main()
