#!/usr/bin/env bash
# Ray Data's write_json and Hugging Face's to_json write a learning rate of 1e-12 as 0.0.
#
# Ray 2.60.0, datasets 5.2.0, pandas 2.3.3, pyarrow 26.0.1, 2026-11-28. Both call pandas' to_json with its defaults:
# ten digits after the decimal point, whatever the number's size, and times in milliseconds. Of a column with another
# unit than nanoseconds, as both libraries make of Python's datetime, pandas writes a thousandth of that, or a
# millionth, and reading it back gives another year. Nothing warns. CSV and Parquet keep all digits and the times.
# What works: Parquet, or double_precision=15 and date_format="iso", which both libraries pass on to pandas.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ray[data]==2.60.0" datasets==5.2.0 pandas==2.3.3 pyarrow==26.0.1 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import datetime
import logging
from pathlib import Path

import datasets
import pandas
import ray.data

ROW = {"rate": 1e-12, "third": 1 / 3, "time": datetime.datetime(2024, 1, 1, 12, 0, 0, 250_000)}
ray.init("local", num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
logging.getLogger("ray.data").setLevel(logging.ERROR)
ray.data.DataContext.get_current().enable_progress_bars = False
for options in ({}, {"double_precision": 15, "date_format": "iso"}):
    print("options:", options)
    folder = Path(f"ray-{len(options)}")
    ray.data.from_items([ROW]).write_json(str(folder), **options)
    (written,) = folder.iterdir()
    print("Ray's write_json:", written.read_text().strip())
    datasets.Dataset.from_list([ROW]).to_json("rows.json", **options)
    print("datasets' to_json:", Path("rows.json").read_text().strip())
pandas.DataFrame([ROW]).astype({"time": "datetime64[us]"}).to_json("rows.json", orient="records", lines=True)
print("pandas' to_json:", Path("rows.json").read_text().strip())
END

cat > expected.txt <<'END'
options: {}
Ray's write_json: {"rate":0.0,"third":0.3333333333,"time":1704110}
datasets' to_json: {"rate":0.0,"third":0.3333333333,"time":1704110400}
options: {'double_precision': 15, 'date_format': 'iso'}
Ray's write_json: {"rate":0.000000000001,"third":0.333333333333333,"time":"2024-01-01T12:00:00.250"}
datasets' to_json: {"rate":0.000000000001,"third":0.333333333333333,"time":"2024-01-01T12:00:00.250"}
pandas' to_json: {"rate":0.0,"third":0.3333333333,"time":1704110400}
END

export HF_HOME="$folder/home" HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0
venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
