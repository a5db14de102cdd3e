#!/usr/bin/env bash
# torchmetrics' R2Score is wrong for targets whose mean is much larger than their spread.
#
# torchmetrics 1.9.0, torch 2.13.0, 2026-11-30. R2Score and ExplainedVariance add up squares in float32 and subtract two
# large sums at the end. With a spread of 1, that costs digits from a mean of about 1,000 on, such as years: instead of
# 0.8, the score is 0.7, 0, 0.99 or above 1. The size of the batches and the processor change it. PearsonCorrCoef keeps
# means and is right. Nothing warns. https://github.com/Lightning-AI/torchmetrics/issues/3077, open.
# What works: R2Score().set_dtype(torch.float64) with .double() of both arguments; or subtract the same number, such as
# the training rows' mean, from both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import torch
from torchmetrics import R2Score


def score(metric, guesses, targets):
    for start in range(0, len(targets), 50):
        metric.update(guesses[start : start + 50], targets[start : start + 50])
    return round(metric.compute().item(), 2)


def exact(guesses, targets):
    guesses, targets = guesses.double(), targets.double()
    return round(1 - ((targets - guesses) ** 2).sum().item() / ((targets - targets.mean()) ** 2).sum().item(), 2)


for center in (0, 5_000, 20_000):
    torch.manual_seed(1)
    guesses = torch.randn(500) + center
    targets = guesses + torch.randn(500) / 2
    right = exact(guesses, targets)
    scores = {
        "float32": score(R2Score(), guesses, targets),
        "float64": score(R2Score().set_dtype(torch.float64), guesses.double(), targets.double()),
        "centered": score(R2Score(), guesses - center, targets - center),
    }
    print(f"targets around {center}, right within 0.02:", {name: abs(r2 - right) < 0.02 for name, r2 in scores.items()})
END

cat > expected.txt <<'END'
targets around 0, right within 0.02: {'float32': True, 'float64': True, 'centered': True}
targets around 5000, right within 0.02: {'float32': False, 'float64': True, 'centered': True}
targets around 20000, right within 0.02: {'float32': False, 'float64': True, 'centered': True}
END

venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
