"""`torch.compile`

Group: PyTorch in a TorchTrainer
Packages: torch
Asked: all but stop
Guess: all
Line: `model.compile()` keeps the names of weights in a checkpoint; `torch.compile(model)` puts
    `_orig_mod.` before them
Note: Compiled with `backend="aot_eager"`, which needs no C++ compiler.
"""

from ray.train.torch import prepare_data_loader, prepare_model
from torch.utils.data import DataLoader

from benchmarks._works_with import problem
from benchmarks._works_with.rows import plain


def loop(config):
    model = prepare_model(problem.new_model())
    model.compile(backend="aot_eager")
    loader = prepare_data_loader(DataLoader(problem.data(), batch_size=problem.BATCH))
    return plain.train(config, model, loader)
