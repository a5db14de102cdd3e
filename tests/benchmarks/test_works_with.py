"""Each row of docs/works-with.md is run again, and must show what the page says.

Many rows need packages that `make setup` doesn't install, so all run in an environment of this test's own.
"""

import json
import os
import subprocess
import sys
import time

import pytest

from benchmarks._works_with import table

pytestmark = [pytest.mark.slow, pytest.mark.night, pytest.mark.covers("benchmarks/_works_with/")]

ROWS = [row.key for row in table.rows()]


@pytest.fixture(scope="module")
def python(root, tmp_path_factory):
    """A Python that has this environment's packages and those of requirements.txt."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    of_lab = next(path for path in sys.path if path.endswith("site-packages"))
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "lab.pth").write_text(f"import site; site.addsitedir({of_lab!r})\n")
    listed = root / "benchmarks" / "_works_with" / "requirements.txt"
    install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps", "-r", listed]
    subprocess.run(install, check=True, timeout=800)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def runs(request, root, python, home, tmp_path_factory):
    """A process that runs the rows of the chosen tests one after the other, and the file that it fills."""
    chosen = [item.callspec.params["row"] for item in request.session.items if item.path == request.path]
    folder = tmp_path_factory.mktemp("rows")
    command = [python, "-m", "benchmarks", "works_with", "--json", folder / "seen.json", *chosen]
    with open(folder / "log.txt", "w") as log:
        process = subprocess.Popen(command, cwd=root, env=dict(os.environ), stdout=log, stderr=log)
        yield process, folder
        process.terminate()
        process.wait()


@pytest.mark.parametrize("row", ROWS)
def test_a_row_is_what_the_page_says(runs, root, row):
    process, folder = runs
    while row not in (seen := read(folder / "seen.json")):
        assert process.poll() is None, (folder / "log.txt").read_text()[-5000:]
        time.sleep(0.5)
    on_page = read(root / "benchmarks" / "_works_with" / "seen.json")[row]  # see test_works_with_page.py
    assert seen[row]["facts"] == on_page["facts"], (folder / "log.txt").read_text()[-5000:]


def read(path):
    return json.loads(path.read_text()) if path.exists() else {}
