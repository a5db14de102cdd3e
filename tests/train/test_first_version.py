"""RAY_TRAIN_V2_ENABLED=0, as tutorials of 2025 set it: one sentence with its fix, and sweeps work."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def run(code, **variables):
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | variables, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("value", ["0", "false"])
@pytest.mark.parametrize(
    "code", ["from labkit.train import TrainPanel", "from labkit.train import reported_checkpoints"]
)
def test_ray_trains_first_version_is_refused_with_its_fix(code, value):
    done = run(
        f"from labkit.errors import LabError\ntry:\n    {code}\nexcept LabError as error:\n    print(error)",
        RAY_TRAIN_V2_ENABLED=value,
    )
    assert f"RAY_TRAIN_V2_ENABLED is {value!r}" in done.stdout, done.stderr
    assert "fix: unset RAY_TRAIN_V2_ENABLED" in done.stdout


def test_the_fix_works_and_sweeps_need_none():
    fixed = "import os; os.environ.pop('RAY_TRAIN_V2_ENABLED', None); from labkit.train import TrainPanel"
    for code in (fixed, "from labkit.tune import SweepPanel; SweepPanel('x')"):
        assert run(code, RAY_TRAIN_V2_ENABLED="0").returncode == 0
