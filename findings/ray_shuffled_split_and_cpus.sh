#!/usr/bin/env bash
# Ray Data's train_test_split(shuffle=True, seed=...) draws other test rows on a machine with more CPUs.
#
# Ray 2.60.0, 2026-11-29. The shuffle draws by the seed and the number of the block, and a source is cut into as many
# blocks as the cluster has CPUs to read them. So a run that resumes on a larger cluster tests on rows with which it
# has trained: of 200 test rows of 2,000, about 20 are the same. With Parquet files, two processes on one machine can
# differ, too, since files are shuffled in the order in which they were read. Nothing warns.
# What works: train_test_split() without shuffle=True on rows in a known order; or a column that says which rows are
# for testing, such as a hash of an id, and filter().
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ray[data]==2.60.0" pyarrow==26.0.1 numpy==2.4.6 pandas==2.3.3
cd "$folder"

cat > program.py <<'END'
import logging
import sys

import ray.data

cpus, shuffle = int(sys.argv[1]), sys.argv[2] == "shuffled"
ray.init("local", num_cpus=cpus, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
logging.getLogger("ray.data").setLevel(logging.ERROR)
ray.data.DataContext.get_current().enable_progress_bars = False
rows = ray.data.range(2000)
_, test = rows.train_test_split(0.1, shuffle=shuffle, seed=0 if shuffle else None)
print(*sorted(row["id"] for row in test.take_all()), sep="\n")
END

cat > expected.txt <<'END'
shuffled by seed 0: with 2 CPUs twice 200 of 200 rows in common, with 2 and 8 CPUs fewer than 50
in order: with 2 and 8 CPUs 200 of 200 rows in common
END

export RAY_USAGE_STATS_ENABLED=0
for run in "2 shuffled a" "2 shuffled b" "8 shuffled c" "2 ordered d" "8 ordered e"; do
    read -r cpus how name <<< "$run"
    venv/bin/python program.py "$cpus" "$how" > "$name.txt" 2> log.txt || { cat log.txt; exit 1; }
done
both() { sort "$1.txt" "$2.txt" | uniq -d | wc -l; }
few() { [ "$1" -lt 50 ] && echo "fewer than 50" || echo "$1"; }
{
    echo "shuffled by seed 0: with 2 CPUs twice $(both a b) of 200 rows in common, with 2 and 8 CPUs $(few "$(both a c)")"
    echo "in order: with 2 and 8 CPUs $(both d e) of 200 rows in common"
} > seen.txt
cat seen.txt
diff expected.txt seen.txt
