#!/usr/bin/env bash
# torchmetrics decides for each batch whether it has logits or probabilities, so the batch size changes the accuracy.
#
# torchmetrics 1.9.0, torch 2.13.0, 2026-11-30. The binary, multiclass and multilabel metrics apply a sigmoid or a
# softmax if a number is outside of 0 to 1. They look at one call of update() at a time. A batch whose logits all happen
# to be between 0 and 1 is taken for probabilities: a logit of 0.3 is a "no" there, and a "yes" in the next batch. For
# the area under the curve, both kinds end up in one ranking. Small batches are affected most, and so are several ranks
# that share a batch. Nothing warns. https://github.com/Lightning-AI/torchmetrics/issues/2195 and 1604, both open.
# What works: pass probabilities, metric.update(logits.sigmoid(), labels) or logits.softmax(1).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import torch
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

torch.manual_seed(0)
logits = torch.randn(400)
labels = (logits + torch.randn(400) > 0).long()


def measured(metric, scores, size):
    for start in range(0, len(scores), size):
        metric.update(scores[start : start + size], labels[start : start + size])
    return round(metric.compute().item(), 3)


for size in (400, 4, 2, 1):
    accuracy, area = measured(BinaryAccuracy(), logits, size), measured(BinaryAUROC(), logits, size)
    print(f"batches of {size}: accuracy {accuracy}, area under the curve {area}")
accuracy, area = (measured(metric, logits.sigmoid(), 1) for metric in (BinaryAccuracy(), BinaryAUROC()))
print(f"probabilities, batches of 1: accuracy {accuracy}, area under the curve {area}")
print("by hand: accuracy", round(((logits > 0) == labels).float().mean().item(), 3))
END

cat > expected.txt <<'END'
batches of 400: accuracy 0.733, area under the curve 0.819
batches of 4: accuracy 0.725, area under the curve 0.811
batches of 2: accuracy 0.72, area under the curve 0.807
batches of 1: accuracy 0.685, area under the curve 0.763
probabilities, batches of 1: accuracy 0.733, area under the curve 0.819
by hand: accuracy 0.733
END

venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
