"""The recipe for MLflow in docs/runs.md, with a real MLflow in a folder of its own.

pip fetches mlflow-skinny, which is MLflow without its user interface, so this test needs a package index.
"""

import json
import os
import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/runs/", "docs/runs.md")]


VERSION = "3.17.2"  # the page names it
DATABASE = ("sqlalchemy", "alembic")  # of the store that MLflow uses by default
PROGRAM = """
import json, time

with Panel("own", live=[to_mlflow], config={"lr": 0.1}) as panel:
    for epoch, loss in enumerate([0.5, 0.25]):
        panel.report({"loss": loss, "epoch": epoch, "word": "no number"})

client, runs = mlflow.MlflowClient(), []
while not runs:  # the panel doesn't wait for a slow machine
    time.sleep(0.2)
    runs = client.search_runs([experiment.experiment_id], "attributes.status = 'FINISHED'")
losses = client.get_metric_history(runs[0].info.run_id, "loss")
print(json.dumps([runs[0].info.run_name, runs[0].data.params, [(one.step, one.value) for one in losses]]))
"""


def test_the_recipe_for_mlflow_writes_settings_and_each_epoch(root, tmp_path):
    page = (root / "docs" / "runs.md").read_text(encoding="utf-8")
    (recipe,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "mlflow" in block]
    assert f"tested with {VERSION}" in page
    packages = [f"mlflow-skinny=={VERSION}", *DATABASE]
    folder = str(tmp_path / "packages")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, *packages]
    subprocess.run(command, check=True, timeout=800)
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{root}"}
    environment |= {"LABKIT_HOME": str(tmp_path / "home"), "LABKIT_PANEL": "none"}
    done = subprocess.run(
        [sys.executable, "-c", recipe + PROGRAM],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    name, settings, losses = json.loads(done.stdout.splitlines()[-1])
    assert (settings, losses) == ({"lr": "0.1"}, [[0, 0.5], [1, 0.25]])
    assert list((tmp_path / "home").glob(f"runs/own/{name}"))
