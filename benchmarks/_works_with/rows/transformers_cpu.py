"""transformers' `Trainer` with `use_cpu=True`

Group: Trainers in a TorchTrainer
Packages: transformers, accelerate
Guess: all but rows
Line: `TrainingArguments(use_cpu=True)` on CPUs; a callback that reports after each epoch
"""

import tempfile
from pathlib import Path

import ray.train
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from benchmarks._works_with import problem

ROWS_OF = problem.in_batches


class Regression(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, labels):
        output = self.model(x)
        return {"loss": torch.nn.functional.mse_loss(output, labels), "logits": output}


class Report(TrainerCallback):
    """After each save, report the folder as a checkpoint of Ray."""

    def on_save(self, args, state, control, **others):
        loss = next(entry["loss"] for entry in reversed(state.log_history) if "loss" in entry)
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        first = ray.train.get_context().get_world_rank() == 0
        checkpoint = ray.train.Checkpoint.from_directory(folder) if first else None
        ray.train.report({"loss": loss, "epoch": round(state.epoch) - 1}, checkpoint=checkpoint)


def new_trainer(epochs, *, callbacks=(), pause=0.0, **options):
    """Make a trainer, with `options` in which the rows of transformers differ."""
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        num_train_epochs=epochs,
        per_device_train_batch_size=problem.BATCH,
        learning_rate=problem.RATE,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0.0,
        logging_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
        **options,
    )
    model = Regression(problem.new_model(pause))
    rows = [{"x": x, "labels": y} for x, y in problem.data()]
    return Trainer(model=model, args=arguments, train_dataset=rows, callbacks=list(callbacks))


def loop(config):
    trainer = new_trainer(
        config["epochs"],
        callbacks=[Report()],
        pause=config["pause"],
        use_cpu=True,
        train_sampling_strategy="sequential",
        save_strategy="epoch",
    )
    checkpoint = ray.train.get_checkpoint()
    trainer.train(resume_from_checkpoint=checkpoint and checkpoint.to_directory())
    return problem.weights_of_ranks(trainer.model)
