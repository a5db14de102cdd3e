"""Which tests run when. Marks in a test module say so:

- `slow`: the module takes more than four seconds. All other tests are `quick`, but for browsers and faults.
- `covers("labkit/panel/", …)`: its tests are deep, and a change below one of these paths asks for them.
- `each_change`: this test of such a module runs for each change all the same.
- `night`: only `make test-all` runs it. Five clusters in namespaces and docs/works-with.md take half an hour.

And this is what runs:

- ``-m quick``, the minute between two edits: no cluster, no browser, no training.
- `make test`, for each change: all tests but the deep ones.
- `make test-all`, for each night: everything. When it is green on a clean checkout, it writes the commit into
  ``.ci/tested``.
- `.ci/run`, for each submission: `make test`, then the deep tests that cover the files that differ from the
  commit in ``.ci/tested``.
"""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTED = ROOT / ".ci" / "tested"
LEFT = "left for make test-all: the hour of .ci/run is over"

# A change of one of these asks for all deep tests.
EVERYTHING = (
    "labkit/_ray.py",
    "labkit/_tune.py",
    "labkit/_spark.py",
    "labkit/_jupyter.py",
    "labkit/settings.py",
    "labkit/local/",
    "pyproject.toml",
    "constraints.txt",
    "conftest.py",
    "tests/support/",
)

# In the names of tests that need TensorFlow, which has no wheel for Python 3.14 yet.
TENSORFLOW = ("keras", "tensorflow", "lesson_04") if sys.version_info >= (3, 14) else ()


def modules() -> list[Path]:
    """Return the paths of all test modules."""
    return sorted((ROOT / "tests").rglob("test_*.py"))


@functools.cache
def module_marks(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the marks in a module's `pytestmark` with their arguments. Importing it would take longer."""
    marks = {}
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark":
            value = statement.value
            for mark in value.elts if isinstance(value, ast.List) else [value]:
                arguments = mark.args if isinstance(mark, ast.Call) else []
                name = mark.func if isinstance(mark, ast.Call) else mark
                marks[name.attr] = tuple(argument.value for argument in arguments)
    return marks


def modules_for(changed: Iterable[str]) -> list[str]:
    """Return the names of the modules whose deep tests a change of these files asks for."""
    changed = list(changed)
    names = []
    for path in modules():
        marks = module_marks(path)
        if "covers" in marks:
            prefixes = (*EVERYTHING, *marks["covers"], path.relative_to(ROOT).as_posix())
            if any(file.startswith(prefixes) for file in changed):
                names.append(path.name)
    return names


def touched() -> list[str]:
    """Return pytest's options for the deep tests of what differs from the commit in `.ci/tested`.

    Without such a commit, or if it is no ancestor of HEAD, these are all deep tests but those of the night.
    """
    options = ["-m", "deep and not night"]
    tested = TESTED.read_text().strip() if TESTED.exists() else "none"
    if _git("merge-base", "--is-ancestor", tested, "HEAD").returncode:
        return options
    changed = _git("diff", "--name-only", tested, "HEAD").stdout.splitlines()
    lessons = {Path(path).stem for path in changed if path.startswith(("lessons/", "notebooks/plain/"))}
    wanted = [*modules_for(changed), *sorted(lessons)]
    return [*options, "-k", " or ".join(wanted)] if wanted else []


def note_tested() -> str:
    """Write down that HEAD was tested completely, unless the checkout differs from it."""
    if _git("status", "--porcelain").stdout.strip():
        return f"{TESTED.relative_to(ROOT)} not written: the checkout has changes that no commit has"
    TESTED.write_text(_git("rev-parse", "HEAD").stdout)
    return f"wrote {TESTED.relative_to(ROOT)}: commit it"


def _git(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
