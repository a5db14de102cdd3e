"""Seconds, memory and disk of each lesson in small mode, all exercises solved.

    .venv/bin/python -m benchmarks notebooks [--lessons 00 03] [--claims] [--repeat 1] [--json FILE]

Each runs as under nbmake, in a kernel and a home of its own, one after the other. *Memory* is the most that
the kernel and everything that the lab started had together, looked at every two seconds (it takes some of
their time); *disk* is what the home folder holds at the end. With ``--claims`` the claims of a lesson are run
with it, and cells that failed are printed: what it says about times holds on a machine that has nothing else
to do, so no test can hold it. The last line is ``notebooks: ratio=…``, all lessons together over 12 minutes.
"""

import contextlib
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

import nbformat
import psutil

from benchmarks._paired import Results, parser
from benchmarks._programs import lab_environment, memory
from labkit.local.lab import Lab

LIMIT = 12 * 60
ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"


def _disk(home: Path) -> int:
    """Return the bytes of disk of a folder. What is deleted meanwhile counts as nothing."""
    total = 0
    for path in home.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total


class _Memory(threading.Thread):
    """The most bytes that this process, its children and those of a home have in a ``with`` block."""

    def __init__(self, home: Path) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self._home = home
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        root = psutil.Process()
        while not self._over.wait(2):  # to look takes a tenth of a second
            processes = {root, *root.children(recursive=True)}
            processes |= {member.process for member in Lab(self._home).running()}
            self.most = max(self.most, sum(map(memory, processes)))


def with_claims(name: str) -> nbformat.NotebookNode:
    """Return the solved lesson `name` with all its claims."""
    sys.path.insert(0, str(ROOT / "tools"))
    import additions
    import build
    import lesson

    source = ROOT / "lessons" / f"{name}.py"
    cells = additions.complete(source, lesson.read(source))
    return build.notebook(cells, solutions=True, claims=True, timed=True)


def failed(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the sources of the cells that failed, in a notebook that was run, and should not have."""
    sources = []
    for cell in notebook.cells:
        may_fail = "raises-exception" in cell.metadata.get("tags", ())
        if not may_fail and any(output.output_type == "error" for output in cell.get("outputs", ())):
            sources.append(cell.source)
    return sources


def run(notebook: nbformat.NotebookNode, home: Path, *, claims: bool) -> dict[str, float]:
    """Run a lesson, and return its figures. Without claims, a cell that fails ends it with its error."""
    from nbclient import NotebookClient

    environment = lab_environment(home)
    environment |= {"LABKIT_SMALL": "1", "LABKIT_PANEL": "text", "LABKIT_CHECK": "strict"}
    del environment["OMP_NUM_THREADS"]
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", allow_errors=claims)
    began = time.time()
    try:
        with tempfile.TemporaryDirectory() as folder, _Memory(home) as memory:
            shutil.copy(NOTEBOOKS / "my_loop.py", folder)
            client.execute(cwd=folder, env=environment)
    finally:
        whole = time.time() - began
        Lab(home).stop()
    return {"whole": whole, "memory, GB": memory.most / 1e9, "disk, GB": _disk(home) / 1e9}


def main() -> None:
    options = parser(__doc__, repeat=1)
    options.add_argument("--lessons", nargs="+", help="their numbers; without it all")
    options.add_argument("--claims", action="store_true", help="run what the lessons claim, too")
    options = options.parse_args()
    results = Results("notebooks", ours="")
    notebooks = sorted(NOTEBOOKS.glob("solutions/*.ipynb"))
    numbers = {path: path.stem.partition("_")[0] for path in notebooks}
    chosen = [path for path in notebooks if not options.lessons or numbers[path] in options.lessons]
    for number in range(options.repeat):
        print(f"round {number + 1} of {options.repeat}", flush=True)
        for path in chosen:
            lesson = with_claims(path.stem) if options.claims else nbformat.read(path, as_version=4)
            with tempfile.TemporaryDirectory(prefix="lkb", ignore_cleanup_errors=True) as home:
                results.add(path.stem, run(lesson, Path(home), claims=options.claims))
            for source in failed(lesson):
                print(f"    did not hold: {source}", flush=True)
    whole = sum(map(statistics.median, results.seconds["whole"].values()))
    print(f"\nall together: {whole:.0f} s")
    results.finish(whole / LIMIT, json=options.json)


if __name__ == "__main__":
    main()
