"""Seconds, memory and disk of each lesson in small mode, all exercises solved.

    .venv/bin/python -m benchmarks notebooks [--lessons 00 03] [--claims] [--repeat 1] [--json FILE]

Each runs as under nbmake, in a kernel and a home of its own, one after the other. *Memory* is the most that
the kernel and everything that the lab started had together, looked at every two seconds (it takes some of
their time); *disk* is what the home folder holds at the end. With ``--claims`` the claims of a lesson are run
with it, and those that failed are printed: what it says about times holds on a machine that has nothing else
to do, so no test can hold it. The last line is ``notebooks: ratio=…``, all lessons together over 12 minutes.
"""

import contextlib
import shutil
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Self

import nbformat
import psutil

from benchmarks._paired import Results, parser
from benchmarks._programs import lab_environment, memory
from labkit.local.lab import Lab

LIMIT = 12 * 60
ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"


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


def with_claims(name: str, folder: Path) -> Path:
    """Write the solved lesson `name`, with all its claims, as a notebook in `folder`."""
    sys.path.insert(0, str(ROOT / "tools"))
    import additions
    import build
    import lesson

    source = ROOT / "lessons" / f"{name}.py"
    cells = []
    for cell in additions.complete(source, lesson.read(source)):
        if cell.is_claim:
            cell = replace(cell, tags=(*cell.tags, "raises-exception"))
        cells.append(cell)
    shutil.copy(FOLDER / "my_loop.py", folder)
    path = folder / f"{name}.ipynb"
    nbformat.write(build.notebook(cells, solutions=True, claims=True, timed=True), path)
    return path


def failed(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the sources of the claims that did not hold, in a notebook that was run."""
    sources = []
    for cell in notebook.cells:
        is_claim = "claim" in cell.metadata.get("tags", ())
        if is_claim and any(output.output_type == "error" for output in cell.outputs):
            sources.append(cell.source)
    return sources


def run(notebook: Path, home: Path) -> tuple[dict[str, float], list[str]]:
    """Run a lesson; return its figures, and the claims that did not hold.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    from nbclient import NotebookClient

    environment = lab_environment(home)
    environment |= {"LABKIT_SMALL": "1", "LABKIT_PANEL": "text", "LABKIT_CHECK": "strict"}
    del environment["OMP_NUM_THREADS"]
    content = nbformat.read(notebook, as_version=4)
    client = NotebookClient(
        content,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(notebook.parent)}},
    )
    began = time.time()
    try:
        with _Memory(home) as memory:
            client.execute(env=environment)
    finally:
        whole = time.time() - began
        Lab(home).stop()
    figures = {"whole": whole, "memory, GB": memory.most / 1e9, "disk, GB": _disk(home) / 1e9}
    return figures, failed(content)


def main() -> None:
    options = parser(__doc__, repeat=1)
    options.add_argument("--lessons", nargs="+", help="their numbers; without it all")
    options.add_argument("--claims", action="store_true", help="run what the lessons claim, too")
    options = options.parse_args()
    results = Results("notebooks", ours="")
    notebooks = sorted((FOLDER / "solutions").glob("*.ipynb"))
    numbers = {path: path.stem.partition("_")[0] for path in notebooks}
    chosen = [path for path in notebooks if not options.lessons or numbers[path] in options.lessons]
    for number in range(options.repeat):
        print(f"round {number + 1} of {options.repeat}", flush=True)
        for path in chosen:
            with (
                tempfile.TemporaryDirectory(prefix="lkb", ignore_cleanup_errors=True) as home,
                tempfile.TemporaryDirectory() as folder,
            ):
                lesson = with_claims(path.stem, Path(folder)) if options.claims else path
                figures, claims = run(lesson, Path(home))
            results.add(path.stem, figures)
            for claim in claims:
                print(f"    did not hold: {claim}", flush=True)
    whole = sum(map(statistics.median, results.seconds["whole"].values()))
    print(f"\nall together: {whole:.0f} s")
    results.finish(whole / LIMIT, json=options.json)


if __name__ == "__main__":
    main()
