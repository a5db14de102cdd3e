"""From nothing to the first task done: `cluster.start()` against `ray.init()`; and what one more node takes.

    .venv/bin/python -m benchmarks cluster [--repeat 3] [--json FILE]

Each way is a process of its own, so each imports Ray first; that is counted in "with the import". Stock is
Ray as pip installs it. The lab's node is added with `lab.add_node()`, stock's with `ray start --address`,
as Ray's documentation says; both are waited for until the cluster lists them. The last line is
``cluster: ratio=…``, to the first task with the import, since `cluster.start()` imports Ray itself.
"""

import tempfile
from pathlib import Path

from benchmarks import _programs
from benchmarks._paired import Results, measure, parser
from labkit.settings import Settings

_MEASURED = """
import json, time
whole = time.perf_counter()
{imports}
began = time.perf_counter()
{start}
import ray
ray.get(ray.remote(lambda: 1).remote())
done = time.perf_counter()
{node}
while sum(node["Alive"] for node in ray.nodes()) < 2:
    time.sleep(0.05)
print("seen", json.dumps({{
    "to the first task": done - began,
    "with the import": done - whole,
    "one more node": time.perf_counter() - done,
}}))
{stop}
"""
_LAB = _MEASURED.format(
    imports="from labkit.local import cluster",
    start="lab = cluster.start()",
    node="lab.add_node(cpus=1)",
    stop="lab.stop()",
)
# `ray stop` would end every Ray of this machine: the node is ended by the pids that came with it.
_STOCK = _MEASURED.format(
    imports="import ray",
    start='ray.init(address="local")',
    node="""
import os, subprocess, sys
import psutil
before = set(psutil.pids())
address = ray.get_runtime_context().gcs_address
subprocess.run([os.path.join(os.path.dirname(sys.executable), "ray"), "start", "--address", address,
                "--num-cpus", "1"], check=True, capture_output=True)
""",
    stop="""
mine = [psutil.Process(pid) for pid in set(psutil.pids()) - before if psutil.pid_exists(pid)]
mine = [process for process in mine if address in " ".join(process.cmdline())]
ray.shutdown()
for process in mine:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        pass
""",
)


def main() -> None:
    options = parser(__doc__, repeat=3).parse_args()
    results = Results("cluster", ours="lab")
    with tempfile.TemporaryDirectory(prefix="lkb", ignore_cleanup_errors=True) as home:
        ours = _programs.lab_environment(Path(home))
        theirs = _programs.stock_environment(Settings.from_env())
        ways = {
            "lab": lambda: _programs.run(["-c", _LAB], ours)[0],
            "stock Ray": lambda: _programs.run(["-c", _STOCK], theirs)[0],
        }
        measure(ways, results, options.repeat)
    results.finish(results.ratio("with the import", "stock Ray"), json=options.json)


if __name__ == "__main__":
    main()
