#!/usr/bin/env bash
# A MetricCollection of torchmetrics takes two metrics for one if the first batch gives both the same counts.
#
# torchmetrics 1.9.0, torch 2.13.0, 2026-11-30. After the first update(), metrics with equal states become a group, and
# from then on only one of them is updated. Their settings aren't compared: two accuracies with different thresholds, or
# with and without ignore_index, stay equal if the first batch doesn't tell them apart. That is likely for a small batch.
# Nothing warns. https://github.com/Lightning-AI/torchmetrics/issues/2596, closed.
# What works: MetricCollection(..., compute_groups=False).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy, MulticlassAccuracy

SURE = (torch.tensor([0.9, 0.1]), torch.tensor([1, 0]))
UNSURE = (torch.tensor([0.6] * 8), torch.tensor([1] * 8))
PLAIN = (torch.tensor([0, 1, 0, 1]), torch.tensor([0, 1, 1, 1]))
PADDED = (torch.tensor([1, 1, 0, 0]), torch.tensor([1, 2, 2, 2]))


def thresholds():
    return {"at half": BinaryAccuracy(threshold=0.5), "at 0_7": BinaryAccuracy(threshold=0.7)}


def padding():
    options = {"num_classes": 3, "average": "micro"}
    return {"without 2": MulticlassAccuracy(ignore_index=2, **options), "all": MulticlassAccuracy(**options)}


def report(name, collection, batches):
    for batch in batches:
        collection.update(*batch)
    print(f"{name}:", {key: round(value.item(), 2) for key, value in collection.compute().items()})


for metrics, batches in ((thresholds, (SURE, UNSURE)), (padding, (PLAIN, PADDED))):
    name = metrics.__name__
    report(name, MetricCollection(metrics()), batches)
    report(f"{name}, the other batch first", MetricCollection(metrics()), batches[::-1])
    report(f"{name}, compute_groups=False", MetricCollection(metrics(), compute_groups=False), batches)
END

cat > expected.txt <<'END'
thresholds: {'at 0_7': 0.2, 'at half': 0.2}
thresholds, the other batch first: {'at 0_7': 0.2, 'at half': 1.0}
thresholds, compute_groups=False: {'at 0_7': 0.2, 'at half': 1.0}
padding: {'all': 0.5, 'without 2': 0.5}
padding, the other batch first: {'all': 0.5, 'without 2': 0.8}
padding, compute_groups=False: {'all': 0.5, 'without 2': 0.8}
END

venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
