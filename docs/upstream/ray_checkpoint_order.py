"""With checkpoint_score_attribute="loss" alone, Ray keeps the worst checkpoints. Half a minute."""

import tempfile
from pathlib import Path

import ray
import ray.train
from ray.train.torch import TorchTrainer


def loop() -> None:
    for loss in (0.9, 0.5, 0.3, 0.2, 0.1):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "loss").write_text(str(loss))
            ray.train.report({"loss": loss}, checkpoint=ray.train.Checkpoint.from_directory(folder))


if __name__ == "__main__":
    print("ray", ray.__version__)
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        with tempfile.TemporaryDirectory() as storage:
            keep = ray.train.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="loss")
            config = ray.train.RunConfig(storage_path=storage, checkpoint_config=keep)
            scaling = ray.train.ScalingConfig(num_workers=1)
            TorchTrainer(loop, scaling_config=scaling, run_config=config).fit()
            kept = sorted(path.read_text() for path in Path(storage).rglob("loss"))
            print("reported losses: 0.9, 0.5, 0.3, 0.2, 0.1; kept with num_to_keep=2:", *kept)
    finally:
        ray.shutdown()
