"""From `fit()` to the first report and to its end: the lab, Ray as pip installs it, torchrun.

    .venv/bin/python -m benchmarks startup [--repeat 3] [--json FILE]

The work is next to none: two workers report once (torchrun: two processes do one all-reduce), so that what
is measured is the start. In each round all ways come in turn, each in a process of its own:

- lab: `cluster.start()`, then `TorchTrainer.fit()` three times in this kernel;
- lab, no preload: the same with LABKIT_PRELOAD=0;
- stock: `ray.init()`, then the same fits. No setting of the lab; its PYTHONPATH has what pip installs
  next to JupyterLab by default (a jsonschema that imports rfc3987-syntax, and lark), in a folder of its own;
- torchrun: `torchrun --standalone --nproc-per-node 2`, once.

The last line is ``startup: ratio=…``, that of the whole first `fit()` against stock.
"""

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks import _programs
from benchmarks._paired import Results, measure, parser
from labkit.settings import Settings

WHOLE = "whole fit"
FIRST = "to the first report"

_FITS = """
import json, os, sys, time
folder = sys.argv[1]
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def loop():
    import ray.train
    ray.train.report({"done": 1})
    open(f"{folder}/reported", "w").write(repr(time.time()))

for number in range(3):
    began = time.time()
    config = RunConfig(name=f"run-{number}-{os.getpid()}", storage_path=f"{folder}/runs")
    TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=2), run_config=config).fit()
    whole = time.time() - began
    print("seen", json.dumps({"first": float(open(f"{folder}/reported").read()) - began, "whole": whole}))
"""
_LAB = """
import json, time
began = time.time()
from labkit.local import cluster
lab = cluster.start()
print("seen", json.dumps({{"start of the cluster": time.time() - began}}))
{fits}
lab.stop()
"""
_STOCK_RAY = """
import json, time
began = time.time()
import ray
ray.init(address="local")
print("seen", json.dumps({{"start of the cluster": time.time() - began}}))
{fits}
ray.shutdown()
"""
_ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == 2
dist.destroy_process_group()
"""


def seen(code: str, folder: Path, environment: dict[str, str]) -> dict[str, float]:
    """Run `code` in a process of its own, and return {figure: seconds}; of the later runs the median."""
    figures, *fits = _programs.run(["-c", code, str(folder)], environment)
    for name, figure in (("whole", WHOLE), ("first", FIRST)):
        first, *later = [fit[name] for fit in fits]
        figures[f"{figure}, first run"] = first
        figures[f"{figure}, later runs"] = statistics.median(later)
    return figures


def torchrun(environment: dict[str, str]) -> dict[str, float]:
    """Measure torchrun with two processes that do one all-reduce."""
    began = time.time()
    _programs.run_in_torchrun(_ALL_REDUCE, environment=environment)
    return {f"{WHOLE}, first run": time.time() - began}


def main() -> None:
    options = parser(__doc__, repeat=3).parse_args()
    results = Results("startup", ours="lab")
    with tempfile.TemporaryDirectory(prefix="lkb", ignore_cleanup_errors=True) as name:
        home = Path(name)
        ours = _programs.lab_environment(home)
        theirs = _programs.stock_environment(Settings.from_env())
        lab = _LAB.format(fits=_FITS)
        stock = _STOCK_RAY.format(fits=_FITS)
        ways = {
            "lab": lambda: seen(lab, home, ours),
            "stock Ray": lambda: seen(stock, home, theirs),
            "lab, LABKIT_PRELOAD=0": lambda: seen(lab, home, {**ours, "LABKIT_PRELOAD": "0"}),
            "torchrun": lambda: torchrun(ours),
        }
        measure(ways, results, options.repeat)
    results.finish(results.ratio(f"{WHOLE}, first run", "stock Ray"), json=options.json)


if __name__ == "__main__":
    main()
