"""An interrupt has no effect while a trainer's workers do not start. A minute and a half.

The cluster has two CPUs, the run wants three: the workers' placement group is never ready.
"""

import os
import signal
import subprocess
import sys
import time

RUN = """
import ray, ray.train
from ray.train.torch import TorchTrainer
ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
config = ray.train.ScalingConfig(num_workers=3)
print("fit", flush=True)
TorchTrainer(lambda: None, scaling_config=config).fit()
"""

if __name__ == "__main__":
    import ray

    print("ray", ray.__version__)
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    run = subprocess.Popen(
        [sys.executable, "-c", RUN], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        for line in run.stdout:
            if line.strip() == "fit":
                break
        time.sleep(15)  # the controller runs now, and waits for its workers
        begin = time.monotonic()
        run.send_signal(signal.SIGINT)
        try:
            run.wait(90)
            print(f"fit() ended {time.monotonic() - begin:.0f} s after the interrupt")
        except subprocess.TimeoutExpired:
            print("fit() had not ended 90 s after the interrupt")
    finally:
        run.send_signal(signal.SIGTERM)
        try:
            run.wait(20)
        except subprocess.TimeoutExpired:
            run.kill()
