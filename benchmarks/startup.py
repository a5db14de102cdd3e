"""From `fit()` to the first report and to its end: the lab, Ray as pip installs it, torchrun.

    .venv/bin/python -m benchmarks startup [--repeat 3] [--runs 3] [--json FILE]

The work is next to none: two workers report once (torchrun: two processes do one all-reduce), so that what
is measured is the start. In each round all ways come in turn, each in a process of its own:

- lab: `cluster.start()`, then `TorchTrainer.fit()` several times in this kernel;
- lab, no preload: the same with LABKIT_PRELOAD=0;
- stock: `ray.init()`, then the same fits. No setting of the lab; its PYTHONPATH has what pip installs
  next to JupyterLab by default (a jsonschema that imports rfc3987-syntax, and lark), in a folder of its own;
- torchrun: `torchrun --standalone --nproc-per-node 2`, once.

The last line is ``startup: ratio=…``, that of the whole first `fit()` against stock.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import _stock
from benchmarks._paired import Found, measure, parser
from labkit.settings import Settings

WHOLE, FIRST = "whole fit", "to the first report"

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
from labkit.local import cluster
lab = cluster.start()
print("cluster", time.time() - began)
{fits}
lab.stop()
"""
_STOCK_RAY = """
import time
began = time.time()
import ray
ray.init(address="local")
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


def seen(code: str, folder: Path, runs: int, environment: dict[str, str]) -> dict[str, float]:
    """{figure: seconds} of a process that runs `code`; of several later runs the median."""
    figures: dict[str, float] = {}
    found: dict[str, list[float]] = {}
    for line in _stock.run(code, environment, folder, runs).splitlines():
        if line.startswith("cluster "):
            figures["start of the cluster"] = float(line.split()[1])
        if line.startswith("seen "):
            for name, seconds in json.loads(line.removeprefix("seen ")).items():
                found.setdefault(name, []).append(seconds)
    for name, figure in (("whole", WHOLE), ("first", FIRST)):
        figures[f"{figure}, first run"] = found[name][0]
        if runs > 1:
            figures[f"{figure}, later runs"] = statistics.median(found[name][1:])
    return figures


def torchrun(folder: Path, environment: dict[str, str]) -> float:
    """Seconds of torchrun with two processes that do one all-reduce."""
    script = folder / "all_reduce.py"
    script.write_text(_ALL_REDUCE)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    began = time.time()
    subprocess.run(
        [sys.executable, *launch, str(script)], env=environment, check=True, capture_output=True, timeout=300
    )
    return time.time() - began


def main() -> None:
    options = parser(__doc__, repeat=3)
    options.add_argument("--runs", type=int, default=3, help="fits in each process (default 3)")
    options = options.parse_args()
    found = Found("startup", ours="lab")
    with tempfile.TemporaryDirectory(prefix="lkb", ignore_cleanup_errors=True) as name:
        home = Path(name)
        ours, theirs = _stock.lab_environment(home), _stock.stock_environment(Settings.from_env())
        lab, stock = _LAB.format(fits=_FITS), _STOCK_RAY.format(fits=_FITS)
        ways = {
            "lab": lambda: seen(lab, home, options.runs, ours),
            "stock Ray": lambda: seen(stock, home, options.runs, theirs),
            "lab, LABKIT_PRELOAD=0": lambda: seen(lab, home, options.runs, {**ours, "LABKIT_PRELOAD": "0"}),
            "torchrun": lambda: {f"{WHOLE}, first run": torchrun(home, ours)},
        }
        measure(ways, found, options.repeat)
    found.finish(found.ratio(f"{WHOLE}, first run", "stock Ray"), json=options.json)


if __name__ == "__main__":
    main()
