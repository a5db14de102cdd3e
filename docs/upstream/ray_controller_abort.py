"""An interrupt has no effect while a trainer's workers do not start. Two minutes.

The cluster has two CPUs, the run wants three: the workers' placement group is never ready.
"""

import os
import signal
import subprocess
import sys
import time

RUN = """
import threading, time
import ray, ray.train
from ray.train.torch import TorchTrainer

def tell():
    while not any(group["state"] == "PENDING" for group in ray.util.placement_group_table().values()):
        time.sleep(0.5)
    print("the controller waits for its workers", flush=True)

ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
threading.Thread(target=tell, daemon=True).start()
TorchTrainer(lambda: None, scaling_config=ray.train.ScalingConfig(num_workers=3)).fit()
"""

if __name__ == "__main__":
    import ray

    print("ray", ray.__version__)
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    run = subprocess.Popen(
        [sys.executable, "-c", RUN], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        print(run.stdout.readline().strip())
        time.sleep(3)
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
