#!/usr/bin/env bash
# A column by which pandas has partitioned Parquet comes back as another type, not at all, or as an error.
#
# pandas 2.3.3, pyarrow 26.0.1, datasets 5.2.0, Ray 2.60.0, 2026-11-28. The values are in the folders' names, and each
# reader guesses their type. pandas and pyarrow make 1234 of "01234", and the texts "true" and "false" of booleans,
# both of which are true. Ray returns texts. Hugging Face's load_dataset() leaves the column out without a word, also
# where it is the label. A missing value, and "01234" next to "1234", are errors in pandas that don't name the column.
# For the missing value: https://github.com/pandas-dev/pandas/issues/55400, open.
# What works: read_parquet(partitioning=pyarrow.dataset.partitioning(schema, flavor="hive")), which states the types;
# for Hugging Face, write the column into the files as well, under another name.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ray[data]==2.60.0" datasets==5.2.0 pandas==2.3.3 pyarrow==26.0.1 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import logging

import datasets
import pandas
import pyarrow
import pyarrow.dataset
import ray.data

SCHEMA = pyarrow.schema({"zip": pyarrow.string()})


def with_pandas(folder, name):
    return pandas.read_parquet(folder)[name].tolist()


def with_ray(folder, name):
    return sorted(row[name] for row in ray.data.read_parquet(folder).take_all())


def with_datasets(folder, name):
    return datasets.load_dataset("parquet", data_dir=folder, split="train").column_names


ray.init("local", num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
logging.getLogger("ray.data").setLevel(logging.ERROR)
ray.data.DataContext.get_current().enable_progress_bars = False
CASES = {"zip": ["01234", "99999"], "sold": [False, True], "city": ["Ulm", None], "area": ["01234", "1234"]}
for name, values in CASES.items():
    pandas.DataFrame({name: values, "x": [1.5, 2.5]}).to_parquet(name, partition_cols=[name])
    for read in (with_pandas, with_ray, with_datasets):
        try:
            seen = read(name, name)
        except Exception as error:
            seen = f"{type(error).__name__}: {error}"
        print(f"{name} {values} {read.__name__.replace('_', ' ')}: {seen}")
partitioning = pyarrow.dataset.partitioning(SCHEMA, flavor="hive")
print("zip with a schema:", pandas.read_parquet("zip", partitioning=partitioning)["zip"].tolist())
END

cat > expected.txt <<'END'
zip ['01234', '99999'] with pandas: [1234, 99999]
zip ['01234', '99999'] with ray: ['01234', '99999']
zip ['01234', '99999'] with datasets: ['x']
sold [False, True] with pandas: ['false', 'true']
sold [False, True] with ray: ['false', 'true']
sold [False, True] with datasets: ['x']
city ['Ulm', None] with pandas: ArrowInvalid: Cannot yet unify dictionaries with nulls
city ['Ulm', None] with ray: ['Ulm', '__HIVE_DEFAULT_PARTITION__']
city ['Ulm', None] with datasets: ['x']
area ['01234', '1234'] with pandas: ValueError: Categorical categories must be unique
area ['01234', '1234'] with ray: ['01234', '1234']
area ['01234', '1234'] with datasets: ['x']
zip with a schema: ['01234', '99999']
END

export HF_HOME="$folder/home" HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0
venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
