#!/usr/bin/env bash
# In Ray Data a NaN makes sum, mean and std None, skips it in min and max, and empties a scaled column.
#
# Ray 2.60.0, pyarrow 26.0.1, 2026-11-28. Null and NaN are treated differently, and a batch of NumPy arrays doesn't
# show which of the two a cell is. pandas writes NaN as null to Parquet, and other programs write NaN. An
# integer column with a null becomes float64 in a batch, which rounds numbers above 2**53.
# What works: NaN to null first (pyarrow.compute.if_else with is_nan), and batch_format="pyarrow" for integers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ray[data]==2.60.0" pyarrow==26.0.1 numpy==2.4.6 pandas==2.3.3
cd "$folder"

cat > program.py <<'END'
import logging

import pyarrow
import ray.data
from ray.data.preprocessors import StandardScaler

ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
logging.getLogger("ray.data").setLevel(logging.ERROR)
ray.data.DataContext.get_current().enable_progress_bars = False
for name, gap in (("null", None), ("NaN", float("nan"))):
    rows = ray.data.from_arrow(pyarrow.table({"x": pyarrow.array([1.0, gap, 3.0])}))
    sums = {what: getattr(rows, what)("x") for what in ("sum", "mean", "std", "min", "max")}
    scaled = [row["x"] for row in StandardScaler(["x"]).fit_transform(rows).take_all()]
    print(f"{name}: {sums}, scaled {scaled}")
large = ray.data.from_arrow(pyarrow.table({"id": pyarrow.array([2**53 + 1, None], pyarrow.int64())}))
batch = large.take_batch(2)["id"]
print(f"{2**53 + 1} next to a null: {batch.dtype}, {batch[0]:.0f}")
print(f"as pyarrow: {large.take_batch(2, batch_format='pyarrow')['id'][0]}")
END

cat > expected.txt <<'END'
null: {'sum': 4.0, 'mean': 2.0, 'std': 1.4142135623730951, 'min': 1.0, 'max': 3.0}, scaled [-1.0, None, 1.0]
NaN: {'sum': None, 'mean': None, 'std': None, 'min': 1.0, 'max': 3.0}, scaled [None, None, None]
9007199254740993 next to a null: float64, 9007199254740992
as pyarrow: 9007199254740993
END

RAY_USAGE_STATS_ENABLED=0 venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
