#!/usr/bin/env bash
# FileShuffleConfig(seed=7) in Ray Data shuffles by a count of executions, which a new process starts again.
#
# Ray 2.60.0, pyarrow 26.0.1, 2026-11-28, with preserve_order. Each execution has a different order, as epochs should.
# But the count is kept in the process: a run that resumes in epoch 1 reads the order of epoch 0 again. And take(1)
# between two epochs is an execution, too, so all later epochs have another order than without it.
# What works: keep the list of files, and permute it with a generator that is seeded by (seed, epoch).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ray[data]==2.60.0" pyarrow==26.0.1 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import subprocess
import sys
import tempfile

import pyarrow
import pyarrow.parquet

READER = """
import logging, sys
import ray
from ray.data import DataContext, FileShuffleConfig

ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
logging.getLogger("ray.data").setLevel(logging.ERROR)
DataContext.get_current().enable_progress_bars = False
DataContext.get_current().execution_options.preserve_order = True
rows = ray.data.read_parquet(sys.argv[1], shuffle=FileShuffleConfig(seed=7))
for epoch in range(3):
    print("".join(str(row["file"]) for row in rows.take_all()))
    if sys.argv[2] == "looks":
        rows.take(1)
"""


def orders(folder, looks=""):
    program = [sys.executable, "-c", READER, folder, looks]
    return subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()


with tempfile.TemporaryDirectory() as folder:
    for number in range(8):
        pyarrow.parquet.write_table(pyarrow.table({"file": [number]}), f"{folder}/{number}.parquet")
    first, second, looked = orders(folder), orders(folder), orders(folder, "looks")
print(f"three epochs have {len(set(first))} orders")
print(f"a new process starts with the first of them again: {second == first}")
print(f"with take(1) after each epoch, epoch 1 has the order of epoch 2: {looked[1] == first[2] != first[1]}")
END

cat > expected.txt <<'END'
three epochs have 3 orders
a new process starts with the first of them again: True
with take(1) after each epoch, epoch 1 has the order of epoch 2: True
END

RAY_USAGE_STATS_ENABLED=0 venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
