#!/usr/bin/env bash
# pyarrow's join and write_dataset return the rows in another order than they came in.
#
# pyarrow 26.0.1, 2026-11-28. A left join puts rows with a match before rows without one, and mixes larger tables by
# its threads. So the column of another table, such as labels, no longer belongs to the row next to it.
# write_dataset(), which makes few large files of many small ones, writes batches as they are read, so a time series
# is no longer in order. pandas.merge(how="left") keeps the order of its left table. Nothing warns. For the join:
# https://github.com/apache/arrow/issues/37542, open.
# What works: sort_by() a row number afterwards; write_dataset(..., preserve_order=True).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1 numpy==2.4.6 pandas==2.3.3
cd "$folder"

cat > program.py <<'END'
from pathlib import Path

import numpy
import pyarrow
import pyarrow.dataset
import pyarrow.parquet


def in_order(table):
    return bool((numpy.diff(table["row"].to_numpy()) > 0).all())


left = pyarrow.table({"key": [3, 1, 2, 0], "row": range(4)})
right = pyarrow.table({"key": [0, 1, 2], "value": [0, 10, 20]})
print("left join of four rows, pyarrow:", left.join(right, "key")["row"].to_pylist())
print("left join of four rows, pandas:", left.to_pandas().merge(right.to_pandas(), how="left")["row"].tolist())

keys = numpy.random.default_rng(0).permutation(200_000)
left = pyarrow.table({"key": keys, "row": range(200_000)})
right = pyarrow.table({"key": range(200_000), "value": range(200_000)})
print("join of 200,000 rows, all with a match: in order", in_order(left.join(right, "key")))

Path("small").mkdir()
for number in range(40):
    rows = pyarrow.table({"row": range(number * 5000, (number + 1) * 5000)})
    pyarrow.parquet.write_table(rows, f"small/{number:02}.parquet", row_group_size=1000)
for options in ({}, {"preserve_order": True}):
    pyarrow.dataset.write_dataset(pyarrow.dataset.dataset("small"), "large", format="parquet", **options,
                                  existing_data_behavior="overwrite_or_ignore")
    print(f"write_dataset of 40 files, {options}: in order", in_order(pyarrow.parquet.read_table("large")))
END

cat > expected.txt <<'END'
left join of four rows, pyarrow: [1, 2, 3, 0]
left join of four rows, pandas: [0, 1, 2, 3]
join of 200,000 rows, all with a match: in order False
write_dataset of 40 files, {}: in order False
write_dataset of 40 files, {'preserve_order': True}: in order True
END

venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
