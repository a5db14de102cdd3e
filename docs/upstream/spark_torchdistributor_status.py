"""A training file that fails is a success for TorchDistributor. Twenty seconds; needs no Java.

Runs the command of TorchDistributor.run() for a training file, and then torchrun without pyspark's wrapper.
"""

import os
import subprocess
import tempfile
from pathlib import Path

import pyspark
from pyspark.ml.torch.distributor import TorchDistributor

os.environ["OMP_NUM_THREADS"] = "1"  # otherwise torchrun warns
PARAMETERS = {"local_mode": True, "num_processes": 1}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text("raise SystemExit('no such data set')\n")
        command = TorchDistributor._create_torchrun_command(PARAMETERS, str(script))
        wrapper = command.index("pyspark.ml.torch.torch_run_process_wrapper")
        torchrun = [*command[:wrapper], "torch.distributed.run", *command[wrapper + 1 :]]
        status = subprocess.run(torchrun, capture_output=True, timeout=60).returncode
        print(
            f"pyspark {pyspark.__version__}; the training file fails, and torchrun ends with status {status}"
        )
        try:
            TorchDistributor._execute_command(command, redirect_to_stdout=False)
            seen = "it returned normally"
        except RuntimeError as error:
            seen = f"RuntimeError: {str(error)[-60:]}"
        print("expected of TorchDistributor: RuntimeError\nactual:", seen)
