#!/usr/bin/env bash
# safetensors.numpy saves a transposed array with its numbers in another order.
#
# safetensors 0.8.0, ml_dtypes 0.6.0, torch 2.13.0, 2026-11-30. Weights that are carried from Keras to PyTorch, or back,
# are transposed, and NumPy's transpose is a view of the same memory. save_file() and save() of safetensors.numpy write
# that memory as it is, with the new shape. The file is valid, and each number is at a wrong place. Arrays in Fortran's
# order, as some solvers return them, and columns such as weights[:, ::2] are hit as well. Nothing is raised;
# safetensors.torch refuses such tensors with an error that says what to do.
# https://github.com/safetensors/safetensors/issues/825, open.
# What works: numpy.ascontiguousarray(array) for each array before saving.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet safetensors==0.8.0 ml_dtypes==0.6.0 torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import numpy
import safetensors.numpy
import safetensors.torch
import torch

kernel = numpy.arange(6.0).reshape(2, 3)


def report(name, array):
    safetensors.numpy.save_file({"weight": array}, "weights.safetensors")
    loaded = safetensors.numpy.load_file("weights.safetensors")["weight"]
    print(f"{name}: saved {array.tolist()}, loaded {loaded.tolist()}")


report("as it is", kernel)
report("transposed", kernel.T)
report("in Fortran's order", numpy.asfortranarray(kernel))
report("transposed, made contiguous", numpy.ascontiguousarray(kernel.T))
try:
    safetensors.torch.save_file({"weight": torch.from_numpy(kernel).T}, "weights.safetensors")
except ValueError as error:
    print("safetensors.torch:", str(error)[:45])
END

cat > expected.txt <<'END'
as it is: saved [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], loaded [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
transposed: saved [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]], loaded [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
in Fortran's order: saved [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], loaded [[0.0, 3.0, 1.0], [4.0, 2.0, 5.0]]
transposed, made contiguous: saved [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]], loaded [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
safetensors.torch: You are trying to save a non contiguous tenso
END

venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
