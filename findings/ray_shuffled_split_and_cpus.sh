#!/usr/bin/env bash
# Ray Data's train_test_split(shuffle=True, seed=...) draws other test rows on a machine with more CPUs.
#
# Ray 2.60.0, pyarrow 26.0.1, 2026-11-29. The shuffle draws by the seed and the number of the block, and a source is
# cut into more blocks where the cluster has more CPUs. So a run that resumes on a larger cluster tests on rows with
# which it has trained: of 200 test rows of 2,000, about 20 are the same. Blocks are also numbered as they are done:
# with Parquet files, or many CPUs, two processes on one machine can differ, also without a shuffle. Nothing warns.
# What works: override_num_blocks= of the source, and preserve_order of
# DataContext.get_current().execution_options; or a filter by a hash of an id.
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

cpus, fixed = int(sys.argv[1]), sys.argv[2] == "fixed"
ray.init("local", num_cpus=cpus, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
logging.getLogger("ray.data").setLevel(logging.ERROR)
context = ray.data.DataContext.get_current()
context.enable_progress_bars = False
context.execution_options.preserve_order = fixed
rows = ray.data.range(2000, override_num_blocks=10 if fixed else None)
_, test = rows.train_test_split(0.1, shuffle=True, seed=0)
print(*sorted(row["id"] for row in test.take_all()), sep="\n")
END

cat > expected.txt <<'END'
2 and 8 CPUs: fewer than 50 of 200 test rows in common
2 and 8 CPUs, ten blocks in order: 200 of 200 test rows in common
END

export RAY_USAGE_STATS_ENABLED=0
for run in "2 default a" "8 default b" "2 fixed c" "8 fixed d"; do
    read -r cpus how name <<< "$run"
    venv/bin/python program.py "$cpus" "$how" > "$name.txt" 2> log.txt || { cat log.txt; exit 1; }
done
both() { sort "$1.txt" "$2.txt" | uniq -d | wc -l; }
few() { [ "$1" -lt 50 ] && echo "fewer than 50" || echo "$1"; }
{
    echo "2 and 8 CPUs: $(few "$(both a b)") of 200 test rows in common"
    echo "2 and 8 CPUs, ten blocks in order: $(both c d) of 200 test rows in common"
} > seen.txt
cat seen.txt
diff expected.txt seen.txt
