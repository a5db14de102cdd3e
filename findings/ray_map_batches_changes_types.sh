#!/usr/bin/env bash
# A map_batches() that changes nothing changes the types of columns.
#
# Ray 2.60.0, pyarrow 26.0.1, numpy 2.4.6, 2026-11-29. With the default batch_format, "numpy", dates become times,
# times lose their zone (the hour becomes that of UTC), decimals get as many digits as the largest one of the batch
# has, and categories become texts. Integers in a batch with an empty cell become floats, and lose digits above
# 2**53; those in another batch of the same column stay integers. Nothing warns, and what is written afterwards has
# the new types.
# What works: batch_format="pyarrow", which changes none of them; "pandas" keeps the integers and the zone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ray[data]==2.60.0" pyarrow==26.0.1 numpy==2.4.6 pandas==2.3.3
cd "$folder"

cat > program.py <<'END'
import logging

import ray.data

ray.init("local", num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
logging.getLogger("ray.data").setLevel(logging.ERROR)
ray.data.DataContext.get_current().enable_progress_bars = False

from datetime import date, datetime, timezone
from decimal import Decimal

import pyarrow as pa

moment = datetime(2026, 3, 1, 9, tzinfo=timezone.utc)
table = pa.table(
    {
        "day": pa.array([date(2026, 3, 1), None]),
        "moment": pa.array([moment, None], pa.timestamp("us", tz="Europe/Berlin")),
        "price": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
        "kind": pa.array(["a", None]).dictionary_encode(),
        "id": pa.array([2**53 + 1, None]),
    }
)


def look(rows):
    block, = (ray.get(ref) for ref in rows.to_arrow_refs())
    types = {field.name: str(field.type) for field in block.schema}
    return types, block["id"][0].as_py() - 2**53, block["moment"][0].as_py()


before, _, begin = look(ray.data.from_arrow(table))
for batch_format in ("numpy", "pandas", "pyarrow"):
    rows = ray.data.from_arrow(table).map_batches(lambda batch: batch, batch_format=batch_format)
    after, digit, hour = look(rows)
    for name in before:
        if after[name] != before[name]:
            print(f"{batch_format}: {name} was {before[name]}, is {after[name]}")
    print(f"{batch_format}: {begin:%H} hours are {hour:%H}, and the id is 2**53 + {digit:g}")
END

cat > expected.txt <<'END'
numpy: day was date32[day], is timestamp[s]
numpy: moment was timestamp[us, tz=Europe/Berlin], is timestamp[us]
numpy: price was decimal128(9, 2), is decimal128(3, 2)
numpy: kind was dictionary<values=string, indices=int32, ordered=0>, is string
numpy: id was int64, is double
numpy: 10 hours are 09, and the id is 2**53 + 0
pandas: kind was dictionary<values=string, indices=int32, ordered=0>, is dictionary<values=string, indices=int8, ordered=0>
pandas: 10 hours are 10, and the id is 2**53 + 1
pyarrow: 10 hours are 10, and the id is 2**53 + 1
END

RAY_USAGE_STATS_ENABLED=0 venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
