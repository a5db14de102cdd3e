#!/usr/bin/env bash
# In Ray Data's expressions, `/` of two integers drops the fraction, so pixels divided by 255 are 0.
#
# Ray 2.60.0, pyarrow 26.0.1, 2026-11-28. col("pixel") / 255 becomes pyarrow's division, which keeps integers and
# rounds towards zero. Python, NumPy and pandas return floats. `//` returns a float, rounded towards zero as well, so
# -7 // 2 is -3.0 where Python says -4. A sum of two uint8 columns wraps at 256. Dataset.mean() adds up in the
# column's 64 bits and overflows without a word: the mean of ten times of 2023 in nanoseconds is negative. pandas'
# mean is right.
# What works: divide by 255.0 or multiply by 1 / 255, and cast large integers to floats before mean().
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ray[data]==2.60.0" pyarrow==26.0.1 numpy==2.4.6 pandas==2.3.3
cd "$folder"

cat > program.py <<'END'
import logging

import numpy
import pyarrow
import ray.data
from ray.data.expressions import col

ray.init("local", num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
logging.getLogger("ray.data").setLevel(logging.ERROR)
ray.data.DataContext.get_current().enable_progress_bars = False


def computed(values, expression):
    rows = ray.data.from_arrow(pyarrow.table({"x": values})).with_column("y", expression)
    return [row["y"] for row in rows.take_all()]


pixels = pyarrow.array([0, 128, 200], pyarrow.uint8())
print("pixels / 255:", computed(pixels, col("x") / 255))
print("pixels / 255.0:", [round(y, 2) for y in computed(pixels, col("x") / 255.0)])
print("pixels + pixels:", computed(pixels, col("x") + col("x")))
numbers = pyarrow.array([7, -7])
print("7 and -7, / 2:", computed(numbers, col("x") / 2))
print("7 and -7, // 2:", computed(numbers, col("x") // 2), "in Python:", [7 // 2, -7 // 2])
times = numpy.full(10, 1_700_000_000_000_000_000)
print("mean of ten equal times:", ray.data.from_arrow(pyarrow.table({"x": times})).mean("x"))
END

cat > expected.txt <<'END'
pixels / 255: [0, 0, 0]
pixels / 255.0: [0.0, 0.5, 0.78]
pixels + pixels: [0, 0, 144]
7 and -7, / 2: [3, -3]
7 and -7, // 2: [3.0, -3.0] in Python: [3, -4]
mean of ten equal times: -1.4467440737095517e+17
END

RAY_USAGE_STATS_ENABLED=0 venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
