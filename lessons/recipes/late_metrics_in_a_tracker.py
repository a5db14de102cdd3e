# %% [markdown]
# # Late metrics in the tracker's run
#
# With asynchronous validation, the metric of an epoch is known when the loop is already one or two epochs further. In TensorBoard, it should still be in the training's own run, at the epoch that it belongs to. You'll write it there from the validator, and read the files back.
#
# You need lesson 06. `tensorboardX`, which writes TensorBoard's files, comes with Ray Tune. TensorBoard itself isn't needed here.

# %%
from labkit.local import cluster
from labkit.settings import Settings

lab = cluster.start()
logs = Settings.from_env().make_home() / "tensorboard" / "late-metrics"

# %% [markdown]
# A run of TensorBoard is a folder, and each process writes a file of its own there. So the validator needs only two things: the folder and the epoch. Both are JSON values, so they can be in `fn_kwargs`. On a cluster, the folder has to be one that all machines see.
#
# Say `global_step=epoch`. Without it, every value of the validator would be at step 0 or at the number of its call, which isn't the epoch if some epochs aren't validated.

# %%
import time

import ray.train


def validate(checkpoint, folder, epoch):
    from tensorboardX import SummaryWriter

    time.sleep(1)  # stands in for a validation; the loop is further by then
    accuracy = 0.5 + epoch / 10
    with SummaryWriter(folder, filename_suffix=f".validation-{epoch}") as writer:
        writer.add_scalar("val_accuracy", accuracy, global_step=epoch)
    return {"val_accuracy": accuracy}


# %% [markdown]
# The loop writes its loss from rank 0, as loops do, and asks for validations in epochs 0 and 2.

# %%
import tempfile
from pathlib import Path

from ray.train import CheckpointUploadMode, ValidationTaskConfig


def train_loop(config):
    from tensorboardX import SummaryWriter

    with SummaryWriter(config["folder"], filename_suffix=".training") as writer:
        for epoch in range(4):
            writer.add_scalar("loss", 1 / (epoch + 1), global_step=epoch)
            validation = False
            if epoch in (0, 2):
                arguments = {"folder": config["folder"], "epoch": epoch}
                validation = ValidationTaskConfig(fn_kwargs=arguments, timeout_s=60)
            place = tempfile.mkdtemp()
            Path(place, "epoch.txt").write_text(str(epoch))
            ray.train.report(
                {"epoch": epoch},
                checkpoint=ray.train.Checkpoint.from_directory(place),
                checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
                validation=validation,
            )


# %%
from labkit.train import TrainPanel
from ray.train import RunConfig, ScalingConfig, ValidationConfig
from ray.train.torch import TorchTrainer

panel = TrainPanel("late-metrics")
folder = str(logs / panel.run_id)  # a new folder for each run
trainer = TorchTrainer(
    train_loop,
    train_loop_config={"folder": folder},
    scaling_config=ScalingConfig(num_workers=1),
    run_config=RunConfig(storage_path=str(logs.parent / "runs")),
    validation_config=ValidationConfig(fn=validate),
)
with panel.watch(trainer):
    result = trainer.fit()

# %% [markdown]
# One folder has three files: the loop's, and one of each validation. What is in them? The format is a length, a checksum, an event and a checksum, again and again:

# %%
import struct

from tensorboardX.proto.event_pb2 import Event


def scalars(folder):
    found = []
    for path in sorted(Path(folder).iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + length])
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
            data = data[16 + length :]
    return sorted(found)


for tag, step, value in scalars(folder):
    print(f"{tag} at step {step}: {value:.2f}")

# %% tags=["claim"]
steps = [(tag, step) for tag, step, _ in scalars(folder)]
assert steps == [("loss", 0), ("loss", 1), ("loss", 2), ("loss", 3), ("val_accuracy", 0), ("val_accuracy", 2)]
assert len(list(Path(folder).iterdir())) == 3
late = {step: value for tag, step, value in scalars(folder) if tag == "val_accuracy"}
reported = {metrics["epoch"]: metrics.get("val_accuracy") for _, metrics in result.best_checkpoints}
assert all(abs(reported[epoch] - value) < 1e-6 for epoch, value in late.items())

# %% [markdown]
# `tensorboard --logdir FOLDER --reload_multifile=true` shows both curves in one run, after `pip install tensorboard`. Without that option, TensorBoard reads the newest file of a run and doesn't come back to an older one, so a running training's curve stops as soon as its first validation has written.
#
# Other trackers have a service instead of a folder: pass the *id* of the training's run in `fn_kwargs`, and log to that id. A tracker that numbers its steps by itself needs the epoch as a metric of its own.

# %%
lab.stop()
