#!/usr/bin/env bash
# With **kwargs in a model's forward, transformers' Trainer sums accumulated gradients, where it took their mean before.
#
# transformers 5.23.0, accelerate 1.15.0, torch 2.13.0, one process, 2026-11-28. Trainer takes **kwargs as the promise
# that the model divides its loss by num_items_in_batch, which it then passes. A model of yours that computes the mean
# of its batch, and has **kwargs for another reason, gets gradients that are larger by gradient_accumulation_steps,
# and a logged loss that is, too. Without **kwargs, Trainer divides. Nothing warns. Adam hides it; clipping and SGD do
# not. For heads of transformers itself: https://github.com/huggingface/transformers/issues/47688, open.
# What works: accepts_loss_kwargs = False in the model's class, or a sum that is divided by num_items_in_batch.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.23.0 accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import torch
from transformers import Trainer, TrainingArguments

ROWS = [{"x": 1.0, "labels": 3.0} for _ in range(8)]


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x, labels):
        return {"loss": (self.weight * x - labels).square().mean()}


class WithKwargs(Plain):
    def forward(self, x, labels, **kwargs):
        return super().forward(x, labels)


class WithKwargsAndFlag(WithKwargs):
    accepts_loss_kwargs = False


for kind in (Plain, WithKwargs, WithKwargsAndFlag):
    for accumulated in (1, 4):
        model = kind()
        options = TrainingArguments(
            output_dir="run",
            use_cpu=True,
            num_train_epochs=1,
            per_device_train_batch_size=8 // accumulated,
            gradient_accumulation_steps=accumulated,
            optim="sgd",
            learning_rate=0.01,
            max_grad_norm=0,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(model, options, train_dataset=ROWS)
        trainer.train()
        loss = trainer.state.log_history[0]["loss"]
        weight = model.weight.item()
        print(f"SEEN {kind.__name__}, one step of {accumulated} x {8 // accumulated} rows:", end=" ")
        print(f"weight {weight:.2f}, logged loss {loss}")
END

cat > expected.txt <<'END'
SEEN Plain, one step of 1 x 8 rows: weight 0.06, logged loss 9.0
SEEN Plain, one step of 4 x 2 rows: weight 0.06, logged loss 9.0
SEEN WithKwargs, one step of 1 x 8 rows: weight 0.06, logged loss 9.0
SEEN WithKwargs, one step of 4 x 2 rows: weight 0.24, logged loss 36.0
SEEN WithKwargsAndFlag, one step of 1 x 8 rows: weight 0.06, logged loss 9.0
SEEN WithKwargsAndFlag, one step of 4 x 2 rows: weight 0.06, logged loss 9.0
END

HF_HUB_OFFLINE=1 venv/bin/python program.py > all.txt 2> log.txt || { cat all.txt log.txt; exit 1; }
grep '^SEEN' all.txt > seen.txt
cat seen.txt
diff expected.txt seen.txt
