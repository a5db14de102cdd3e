"""What imports cost: `import labkit`, each of its modules, and what a Ray worker imports for a run.

    .venv/bin/python -m benchmarks import_time [--repeat 5] [--json FILE]

Each module is imported in a fresh process under ``-X importtime``; given is the whole import in
milliseconds, all that it imports included, Python's own start not. Then the ten packages that take longest
in what a worker of a `TorchTrainer` imports, each without what it imports from others. The last line is
``import_time: ratio=…``: `import labkit` over 100 ms.
"""

import pkgutil
import re
import statistics
import subprocess
import sys

import labkit
from benchmarks._paired import Found, parser

LIMIT = 100  # ms
_HEAVY = ("ray", "torch", "tensorflow", "pandas", "pyarrow", "pyspark", "numpy", "matplotlib", "ipywidgets")
_WORKER = "import ray, torch, ray.train.torch"
_LINE = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \| ( *)(\S+)")


def imports(code: str) -> list[tuple[float, float, bool, str]]:
    """(its own ms, ms with all that it imports, whether `code` itself imports it, module) of each import."""
    marked = f"import sys; print('begin', file=sys.stderr, flush=True); {code}"
    command = [sys.executable, "-W", "ignore", "-X", "importtime", "-c", marked]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    found = [_LINE.match(line) for line in lines[lines.index("begin") + 1 :]]
    return [(int(m[1]) / 1000, int(m[2]) / 1000, not m[3], m[4]) for m in found if m]


def whole(code: str) -> float:
    """Milliseconds of the imports in `code`."""
    return sum(ms for _, ms, direct, _ in imports(code) if direct)


def dearest(code: str, count: int = 10) -> dict[str, float]:
    """{package: ms} of those that take longest by themselves; of Ray its libraries one by one."""
    spent: dict[str, float] = {}
    for own, _, _, module in imports(code):
        parts = module.split(".")
        package = ".".join(parts[: 2 if parts[0] == "ray" else 1])
        spent[package] = spent.get(package, 0) + own
    return dict(sorted(spent.items(), key=lambda item: -item[1])[:count])


def main() -> None:
    options = parser(__doc__, repeat=5).parse_args()
    found = Found("import_time", ours="labkit")
    modules = [
        "labkit",
        *(m.name for m in pkgutil.walk_packages(labkit.__path__, "labkit.") if "._" not in m.name),
    ]
    for number in range(options.repeat):
        print(f"round {number + 1} of {options.repeat}", flush=True)
        for module in modules:
            figures = found.seconds.setdefault("import", {}).setdefault(module, [])
            figures.append(whole(f"import {module}"))
    print("dearest in what a worker of a TorchTrainer imports, ms (median):")
    rounds = [dearest(_WORKER, 40) for _ in range(options.repeat)]
    medians = {name: statistics.median(one.get(name, 0) for one in rounds) for name in rounds[0]}
    worker = dict(sorted(medians.items(), key=lambda item: -item[1])[:10])
    for package, ms in worker.items():
        print(f"  {package:24} {ms:6.0f}")
    loaded = {name.split(".")[0] for _, _, _, name in imports("import labkit")}
    heavy = sorted(loaded.intersection(_HEAVY))
    print(f"heavy packages that `import labkit` loads: {', '.join(heavy) or 'none'}")
    found.beside.update(dearest_of_a_worker_ms=worker, heavy=heavy)
    ratio = statistics.median(found.seconds["import"]["labkit"]) / LIMIT
    found.finish(ratio, json=options.json, unit="ms")


if __name__ == "__main__":
    main()
