#!/usr/bin/env bash
# In Hugging Face's datasets, a ClassLabel takes numbers in a CSV file for names, and in JSON and Parquet for positions.
#
# datasets 5.2.0, 2026-11-28. The names are "1" to "5". In a CSV file, 1 and 5 become 0 and 4. With the same features,
# they stay 1 and 5 in JSON and Parquet, so each label is off by one and 5 belongs to no class. cast_column() of
# integers does that, too. A string that isn't a name is a position where it can be one: "0" becomes the class "1". No
# error is raised. Out of range: https://github.com/huggingface/datasets/issues/8494, open.
# What works: class_encode_column(), or a column of strings. Compare int2str() of a few labels with the file.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datasets==5.2.0
cd "$folder"

cat > program.py <<'END'
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet

STARS = datasets.ClassLabel(names=["1", "2", "3", "4", "5"])
Path("stars.csv").write_text("stars\n1\n5\n")
Path("stars.json").write_text('{"stars": 1}\n{"stars": 5}\n')
pyarrow.parquet.write_table(pyarrow.table({"stars": [1, 5]}), "stars.parquet")
for kind in ("csv", "json", "parquet"):
    features = datasets.Features({"stars": STARS})
    rows = datasets.load_dataset(kind, data_files=f"stars.{kind}", split="train", features=features)
    print(f"1 and 5 in {kind}:", rows["stars"][:])
for cells in ([1, 5], ["1", "5"], ["0", "4"]):
    rows = datasets.Dataset.from_dict({"stars": cells}).cast_column("stars", STARS)
    print(f"cast_column() of {cells}:", rows["stars"][:])
END

cat > expected.txt <<'END'
1 and 5 in csv: [0, 4]
1 and 5 in json: [1, 5]
1 and 5 in parquet: [1, 5]
cast_column() of [1, 5]: [1, 5]
cast_column() of ['1', '5']: [0, 4]
cast_column() of ['0', '4']: [0, 3]
END

export HF_HOME="$folder/home" HF_HUB_OFFLINE=1
venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
