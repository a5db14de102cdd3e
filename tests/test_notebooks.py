"""Every lesson, run from its first cell to its last with all exercises solved; one also with none solved.

nbmake runs each notebook once, in a kernel and a home folder of its own; all that is asked of a run is
asked of that one run. The solved notebook is run with the cells tagged ``claim``, which no reader gets: they
assert what the lesson says about its outputs.
"""

import functools
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbmake.nb_result import NotebookResult
from nbmake.nb_run import NotebookRun
from traitlets.config import Config

import additions
import build
import labs
import lesson
from course import exercises
from kernels import without_ports
from labkit.local.lab import Lab
from labs import solved_exercises, wait_until_nothing_lives

pytestmark = pytest.mark.slow


FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
SOURCES = sorted((FOLDER.parent / "lessons").glob("*.py"))
LESSONS = [source.stem for source in SOURCES]
# With the outputs of the run, to be looked at.
KEPT = FOLDER.parent / "artefacts"
RECIPES = sorted(source.stem for source in (FOLDER.parent / "lessons" / "recipes").glob("*.py"))
# With solutions: to run all unsolved ones, too, would double the time. Lesson 03 runs unsolved in a browser
# (test_browser.py). The last lessons are the longest; they come first, so that both lanes end together.
RUNS = [f"solutions/{name}" for name in reversed(LESSONS)]
RUNS += [pytest.param(f"recipes/{name}", marks=pytest.mark.deep) for name in RECIPES]


@dataclass
class Run:
    """A notebook that was run: its outputs, and the home folder that it had."""

    notebook: Path
    home: Path
    result: NotebookResult

    @property
    def is_solution(self) -> bool:
        return self.notebook.parent.name == "solutions"

    @property
    def has_exercises(self) -> bool:
        return self.notebook.parent.name != "recipes" and self.notebook.stem != "tour"

    @property
    def outputs(self) -> str:
        return json.dumps([cell.get("outputs", []) for cell in self.result.nb.cells])


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    kind, name = request.param.split("/")
    sources = FOLDER.parent / "lessons"
    source = (sources / "recipes" if kind == "recipes" else sources) / f"{name}.py"
    notebook = tmp_path_factory.mktemp("notebooks") / kind / f"{name}.ipynb"
    notebook.parent.mkdir()
    shutil.copy(FOLDER / "my_loop.py", notebook.parent)
    cells = additions.complete(source, lesson.read(source))
    nbformat.write(build.notebook(cells, solutions=True, claims=True), notebook)
    with labs.home() as home, without_ports() as options, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_PANEL", "widgets")  # their summaries stay in the outputs, as HTML
        if kind == "solutions":
            patch.setenv("LABKIT_CHECK", "patient")
        client = functools.partial(NotebookClient, config=Config(KernelManager=options))
        patch.setattr("nbmake.nb_run.NotebookClient", client)
        seconds_per_cell = request.config.getoption("nbmake_timeout")
        result = NotebookRun(notebook, seconds_per_cell).execute()
        kept = KEPT / kind
        kept.mkdir(parents=True, exist_ok=True)
        nbformat.write(result.nb, kept / notebook.name)
        yield Run(notebook, home, result)


@pytest.mark.notebook
def test_runs_to_its_end(run):
    assert run.result.error is None, run.result.error.trace
    code = [cell for cell in run.result.nb.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)


@pytest.mark.notebook
def test_solutions_are_solutions_and_nothing_else_is(run):
    number = lesson.number(run.notebook)
    ids = {
        exercise.id for each in exercises.lessons() if each.number == number for exercise in each.exercises
    }
    sources = "\n".join(cell.source for cell in run.result.nb.cells)
    asked = set(re.findall(r'^check\("([^"]+)"', sources, re.MULTILINE))
    assert (len(asked) >= 2) == run.has_exercises and asked == ids
    assert solved_exercises(run.home) == (asked if run.is_solution else set())


@pytest.mark.notebook
def test_no_secret_in_outputs_and_logs(run):
    kept_in = ("ray-token", "credentials")
    tokens = [path.read_text() for path in run.home.rglob("ray-token")]
    keys = [path.read_text() for path in run.home.rglob("credentials")]
    secrets = re.findall(r"aws_secret_access_key\s*=\s*(\S+)", "\n".join(keys))
    code = [cell.source for cell in run.result.nb.cells if cell.cell_type == "code"]
    assert len(tokens) == any("cluster.start(" in source for source in code)
    # An indented call is for a cluster on other machines alone.
    assert len(keys) == any(re.search(r"(?m)^\S.*storage\.start\(", source) for source in code)
    assert len(secrets) == len(keys)
    for secret in [*tokens, *secrets]:
        assert secret not in run.outputs
        for path in (p for p in run.home.rglob("*") if p.is_file() and p.name not in kept_in):
            assert secret.encode() not in path.read_bytes(), f"a secret is in {path}"


@pytest.mark.notebook
def test_it_is_not_flooded_by_rays_own_lines(run):
    """What it says of a process that fails in a lesson may be there; what workers print may not."""
    for mark, most in (("worker processes have been started", 0), ("(autoscaler", 0), ("(pid=", 2)):
        assert run.outputs.count(mark) <= most


@pytest.mark.notebook
def test_leaves_no_process(run):
    wait_until_nothing_lives(run.home)
    assert Lab(run.home).groups() == set()
