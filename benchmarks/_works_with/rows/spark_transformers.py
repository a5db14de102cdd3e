"""transformers' `Trainer` with `use_cpu=True`, in TorchDistributor

Group: In TorchDistributor
Packages: transformers, pyspark
Asked: all but resumes, stop
Guess: all
Line: `TrainingArguments(use_cpu=True)` on CPUs
"""

from benchmarks._works_with import problem, sparked


def loop(epochs):
    import tempfile

    import torch
    from transformers import Trainer, TrainingArguments

    class Regression(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = problem.new_model()

        def forward(self, x, labels):
            output = self.model(x)
            return {"loss": torch.nn.functional.mse_loss(output, labels), "logits": output}

    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        num_train_epochs=epochs,
        per_device_train_batch_size=problem.BATCH,
        train_sampling_strategy="sequential",
        learning_rate=problem.RATE,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0.0,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    rows = [{"x": x, "labels": y} for x, y in problem.data()]
    trainer = Trainer(model=Regression(), args=arguments, train_dataset=rows)
    trainer.train()
    return problem.weights_of_ranks(trainer.model)


def measured(storage):
    return sparked.measured(loop, "spark_transformers", problem.in_batches)
