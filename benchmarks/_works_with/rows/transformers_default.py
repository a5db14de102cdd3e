"""transformers' `Trainer` with its defaults

Group: Trainers in a TorchTrainer
Packages: transformers, accelerate
Asked: one model, one process, epochs
Guess: epochs
Line: see the row above
Note: On CPUs each worker trains a model of its own, on all rows, and the panel says so.
"""

import tempfile

import ray.train
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from benchmarks._works_with import problem


class Regression(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, labels):
        output = self.model(x)
        return {"loss": torch.nn.functional.mse_loss(output, labels), "logits": output}


class Report(TrainerCallback):
    def on_log(self, args, state, control, logs, **others):
        if "loss" in logs:
            ray.train.report({"loss": logs["loss"], "epoch": round(state.epoch) - 1})


def loop(config):
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        num_train_epochs=config["epochs"],
        per_device_train_batch_size=problem.BATCH,
        learning_rate=problem.RATE,
        seed=ray.train.get_context().get_world_rank(),
        optim="sgd",
        logging_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    model = Regression(problem.new_model())
    rows = [{"x": x, "labels": y} for x, y in problem.data()]
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[Report()])
    trainer.train()
    return problem.weights_of_ranks(trainer.model)
