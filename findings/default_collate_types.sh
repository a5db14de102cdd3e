#!/usr/bin/env bash
# The dtype of a batch of Python numbers depends on which rows are in it.
#
# torch 2.13.0, 2026-11-29. DataLoader's default_collate looks at the first number of a batch: a float makes the
# batch float64, and an int lets torch choose, which is int64 if all are ints, and float32 if one isn't. So a column
# that a JSON file has as 1, 2.5, 3 comes as one of three dtypes, and which one changes with the shuffling: a batch
# of whole numbers ends a loop with an error about dtypes in some epochs, or, where nothing objects, computes with
# other digits. NumPy's numbers and tensors have a dtype of their own, and keep it.
# What works: make the numbers tensors, or NumPy's, where a row is read; or a collate_fn that names the dtype.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import json

import numpy
import torch
from torch.utils.data import DataLoader

numbers = json.loads("[1, 2, 1, 2.5, 2.5, 1]")
for name, rows in (("from JSON", numbers), ("numpy.float32", list(map(numpy.float32, numbers)))):
    print(name, *(f"{batch.tolist()} {batch.dtype}" for batch in DataLoader(rows, batch_size=2)), sep="; ")

torch.manual_seed(0)
layer = torch.nn.Linear(1, 1)
for seed in (0, 1):
    torch.manual_seed(seed)
    ends = set()
    for batch in DataLoader(numbers, batch_size=2, shuffle=True):
        try:
            layer(batch[:, None])
            ends.add("a step")
        except RuntimeError as error:
            ends.add(str(error).split(", ")[-1])
    print(f"shuffled by seed {seed}", *sorted(ends), sep="; ")
END

cat > expected.txt <<'END'
from JSON; [1, 2] torch.int64; [1.0, 2.5] torch.float32; [2.5, 1.0] torch.float64
numpy.float32; [1.0, 2.0] torch.float32; [1.0, 2.5] torch.float32; [2.5, 1.0] torch.float32
shuffled by seed 0; a step; but got Double and Float; but got Long and Float
shuffled by seed 1; but got Double and Float; but got Long and Float
END

venv/bin/python program.py > seen.txt
cat seen.txt
diff expected.txt seen.txt
