#!/usr/bin/env bash
# Ray Train's JaxTrainer on CPUs starts no group: each worker is a JAX program of its own.
#
# Ray 2.60.0, jax 0.10.2, two workers, 2026-11-28. JaxTrainer calls jax.distributed.initialize only if use_tpu or
# use_gpu is set. On CPUs, each worker sees one process and one device, and trains alone without a warning, also
# with JAX_PLATFORMS=cpu, for which the same code has a branch.
# What works: jax_config=JaxConfig(use_gpu=True) together with JAX_PLATFORMS=cpu.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ray[train]==2.60.0" jax==0.10.2 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import os
import tempfile

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.jax import JaxTrainer
from ray.train.v2.jax.config import JaxConfig


def loop(config):
    import jax

    return jax.process_count(), jax.device_count()


ray.init("local", num_cpus=3, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
for name, jax_config in (("JaxTrainer", None), ("JaxConfig(use_gpu=True)", JaxConfig(use_gpu=True))):
    with tempfile.TemporaryDirectory() as folder:
        trainer = JaxTrainer(
            loop,
            jax_config=jax_config,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=folder, worker_runtime_env={"env_vars": {"JAX_PLATFORMS": "cpu"}}),
        )
        processes, devices = trainer.fit().return_value
    print(f"{name}: {processes} of 2 processes, {devices} of 2 devices")
END

cat > expected.txt <<'END'
JaxTrainer: 1 of 2 processes, 1 of 2 devices
JaxConfig(use_gpu=True): 2 of 2 processes, 2 of 2 devices
END

RAY_USAGE_STATS_ENABLED=0 venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
