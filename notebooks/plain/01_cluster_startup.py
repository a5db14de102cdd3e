"""Tasks, the object store and an actor that survives its process: what lesson 01 does, in plain Ray.

Prints where the tasks ran, and what the actor remembers after it was killed; in about 30 s on two cores.
With RAY_ADDRESS it runs on that cluster.
"""

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import ray


@ray.remote
def count(labels, start, stop):
    time.sleep(0.5)  # so that you can see that they run at the same time
    return os.getpid(), np.bincount(labels[start:stop], minlength=10)


@ray.remote(max_restarts=1, max_task_retries=-1)
class Counter:
    def __init__(self, path):
        self.path = Path(path)
        self.count = int(self.path.read_text()) if self.path.exists() else 0

    def add(self, number):
        self.count += number
        self.path.write_text(str(self.count))
        return self.count


address = os.environ.get("RAY_ADDRESS", "local")  # a cluster of its own, even if one runs here
ray.init(address, num_cpus=3 if address == "local" else None, log_to_driver=False)
print(ray.cluster_resources()["CPU"], "CPUs")

labels = ray.put(np.arange(30_000) % 10)  # stored once, read by all tasks of a node
begin = time.perf_counter()
parts = ray.get([count.remote(labels, start, start + 10_000) for start in (0, 10_000, 20_000)])
print(f"3 tasks in {len({pid for pid, _ in parts})} processes, {time.perf_counter() - begin:.1f} s")
print("sum:", sum(part for _, part in parts))

with tempfile.TemporaryDirectory() as folder:
    counter = Counter.remote(f"{folder}/count")
    print("five times 2:", [ray.get(counter.add.remote(2)) for _ in range(5)])
    ray.kill(counter, no_restart=False)  # its process dies; Ray starts another one
    print("after the restart:", ray.get(counter.add.remote(2)))

too_much = count.options(num_cpus=1000).remote(labels, 0, 1)
print("a task that asks for 1,000 CPUs is ready after 2 s:", bool(ray.wait([too_much], timeout=2)[0]))
ray.shutdown()
