#!/usr/bin/env bash
# WeightedRandomSampler(replacement=False) draws rows whose weight is 0 when the others are used up.
#
# torch 2.13.0, 2026-11-30. A weight of 0 looks like a way to leave a row out: rows of the validation set, or rows
# without a label. With replacement=False and num_samples larger than the number of other rows, the sampler fills up
# with rows of weight 0, without an error. It calls torch.multinomial, whose documentation promises one. With
# replacement=True such rows are never drawn. https://github.com/pytorch/pytorch/issues/125388, open.
# What works: torch.utils.data.Subset of the rows that should be read, or num_samples=int((weights > 0).sum()).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import torch
from torch.utils.data import WeightedRandomSampler

ROWS = 100
weights = torch.ones(ROWS)
weights[80:] = 0  # the last 20 rows are for validation


def report(name, **options):
    drawn = list(WeightedRandomSampler(weights, generator=torch.Generator().manual_seed(0), **options))
    left_out = sum(row >= 80 for row in drawn)
    print(f"{name}: {len(drawn)} rows, {left_out} of them with weight 0")


report("replacement=False, num_samples=100", num_samples=100, replacement=False)
report("replacement=False, num_samples=90", num_samples=90, replacement=False)
report("replacement=False, num_samples=80", num_samples=int((weights > 0).sum()), replacement=False)
report("replacement=True, num_samples=100", num_samples=100, replacement=True)
END

cat > expected.txt <<'END'
replacement=False, num_samples=100: 100 rows, 20 of them with weight 0
replacement=False, num_samples=90: 90 rows, 10 of them with weight 0
replacement=False, num_samples=80: 80 rows, 0 of them with weight 0
replacement=True, num_samples=100: 100 rows, 0 of them with weight 0
END

venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
