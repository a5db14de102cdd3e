#!/usr/bin/env bash
# Asking for an optimizer's state before its first step counts as a step, and Adam's next update is smaller.
#
# torch 2.13.0, 2026-11-30. get_state_dict() and get_optimizer_state_dict() of torch.distributed.checkpoint make the
# state of an optimizer that has none by a step with gradients of zero and a rate of zero. The weights stay, and Adam's
# count of steps is 1 from then on. So a run that writes a checkpoint before it trains isn't the same as one that
# doesn't: with the usual betas, its first update is three quarters as large. Adam with weight_decay keeps moments of
# that step as well. Nothing warns. https://github.com/pytorch/pytorch/issues/164929, open.
# What works: optimizer.state.clear() after it, or the first checkpoint after the first step.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import torch
from torch.distributed.checkpoint.state_dict import get_state_dict


def updates(name, kind, before=None, **options):
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(1.0)
    optimizer = kind(model.parameters(), lr=0.1, **options)
    if before:
        before(model, optimizer)
    changes = []
    for _ in range(3):
        old = model.weight.item()
        optimizer.zero_grad()
        (model.weight * 2).sum().backward()
        optimizer.step()
        changes.append(round(model.weight.item() - old, 4))
    print(f"{kind.__name__}{options or ''}, {name}: {changes}")


def ask_and_clear(model, optimizer):
    get_state_dict(model, optimizer)
    optimizer.state.clear()


for kind, options in (
    (torch.optim.AdamW, {"weight_decay": 0.0}),
    (torch.optim.Adam, {"weight_decay": 10.0}),
    (torch.optim.SGD, {"momentum": 0.9}),
):
    updates("not asked", kind, **options)
    updates("asked first", kind, get_state_dict, **options)
    updates("asked and cleared", kind, ask_and_clear, **options)
END

cat > expected.txt <<'END'
AdamW{'weight_decay': 0.0}, not asked: [-0.1, -0.1, -0.1]
AdamW{'weight_decay': 0.0}, asked first: [-0.0744, -0.0858, -0.091]
AdamW{'weight_decay': 0.0}, asked and cleared: [-0.1, -0.1, -0.1]
Adam{'weight_decay': 10.0}, not asked: [-0.1, -0.0997, -0.0991]
Adam{'weight_decay': 10.0}, asked first: [-0.1001, -0.1, -0.0995]
Adam{'weight_decay': 10.0}, asked and cleared: [-0.1, -0.0997, -0.0991]
SGD{'momentum': 0.9}, not asked: [-0.2, -0.38, -0.542]
SGD{'momentum': 0.9}, asked first: [-0.2, -0.38, -0.542]
SGD{'momentum': 0.9}, asked and cleared: [-0.2, -0.38, -0.542]
END

venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
