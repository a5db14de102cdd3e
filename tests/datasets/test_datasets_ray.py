"""Ray Data sees images as uint8 [n, 28, 28], from a table and from a Parquet file, in every form of batch."""

import json
import os
import subprocess
import sys

# A process of its own: a Ray that a test started would be there for the tests after it.
SCRIPT = """
import json, logging, sys
import ray
from labkit import datasets

logging.getLogger("ray").setLevel(logging.ERROR)
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
data = datasets.load("digits", "test")
data.to_parquet(f"{sys.argv[1]}/one.parquet")
file = ray.data.read_parquet(f"{sys.argv[1]}/one.parquet").map_batches(lambda batch: batch).materialize()
found = {}
for name, rows in {"table": ray.data.from_arrow(data.to_arrow()), "file": file}.items():
    batch = rows.take_batch(8)
    tensors = next(iter(rows.iter_torch_batches(batch_size=8)))
    found[name] = {
        "rows": rows.count(),
        "numpy": [str(batch["image"].dtype), *batch["image"].shape, str(batch["label"].dtype)],
        "torch": [str(tensors["image"].dtype), *tensors["image"].shape, str(tensors["label"].dtype)],
        "same": bool((batch["image"] == data.images[:8]).all()),
    }
print("FOUND", json.dumps(found))
"""


def test_ray_data_reads_the_columns_as_arrays(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")] or [done.stderr]
    for facts in json.loads(line.removeprefix("FOUND ")).values():
        assert facts["same"] and facts["rows"] == 360
        assert facts["numpy"] == ["uint8", 8, 28, 28, "int64"]
        assert facts["torch"] == ["torch.uint8", 8, 28, 28, "torch.int64"]
