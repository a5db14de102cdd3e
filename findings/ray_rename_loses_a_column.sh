#!/usr/bin/env bash
# Ray Data's rename_columns() loses a column if the new name is taken.
#
# Ray 2.60.0, pyarrow 26.0.1, 2026-11-29. Of the renamed column and the one that had the name before, the one that
# comes later in the rows stays, so after "logits" is renamed to "score", the order of a file's columns decides which
# numbers a model gets. pandas and pyarrow keep two columns of that name. Nothing warns.
# What works: drop_columns(["score"]) before.
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

for row in ({"score": 0.1, "logits": 7.0}, {"logits": 7.0, "score": 0.1}):
    rows = ray.data.from_items([row])
    print(*row, "renamed:", rows.rename_columns({"logits": "score"}).take_all())
    print(*row, "dropped before:", rows.drop_columns(["score"]).rename_columns({"logits": "score"}).take_all())
    print(*row, "pandas:", rows.to_pandas().rename(columns={"logits": "score"}).to_numpy().tolist())
END

cat > expected.txt <<'END'
score logits renamed: [{'score': 7.0}]
score logits dropped before: [{'score': 7.0}]
score logits pandas: [[0.1, 7.0]]
logits score renamed: [{'score': 0.1}]
logits score dropped before: [{'score': 7.0}]
logits score pandas: [[7.0, 0.1]]
END

RAY_USAGE_STATS_ENABLED=0 venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
