"""RAY_TRAIN_V2_ENABLED=0, as tutorials of 2025 set it: one sentence with its fix, and sweeps work."""

import pytest

from labs import python

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("value", ["0", "false"])
@pytest.mark.parametrize(
    "code", ["from labkit.train import TrainPanel", "from labkit.train import reported_checkpoints"]
)
def test_ray_trains_first_version_is_refused_with_its_fix(code, value):
    done = python(
        f"from labkit.errors import LabError\ntry:\n    {code}\nexcept LabError as error:\n    print(error)",
        RAY_TRAIN_V2_ENABLED=value,
    )
    assert f"RAY_TRAIN_V2_ENABLED is {value!r}" in done.stdout, done.stdout
    assert "fix: unset RAY_TRAIN_V2_ENABLED" in done.stdout


def test_the_fix_works_and_sweeps_need_none():
    fixed = "import os; os.environ.pop('RAY_TRAIN_V2_ENABLED', None); from labkit.train import TrainPanel"
    for code in (fixed, "from labkit.tune import SweepPanel; SweepPanel('x')"):
        assert python(code, RAY_TRAIN_V2_ENABLED="0").returncode == 0
