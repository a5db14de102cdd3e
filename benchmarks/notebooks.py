"""Seconds, memory and disk of each lesson in small mode, all exercises solved.

    .venv/bin/python -m benchmarks notebooks [--lessons 00 03] [--claims] [--repeat 1] [--json FILE]

Each runs as under nbmake, in a kernel and a home of its own, one after the other. *Start-up* is the start
of the kernel, the cells that start a cluster, an object store or Spark, and of every run its way from the
call to its first step (new processes, imports, the data pipeline; the run records say how long). *Work* is
the rest. *Memory* is the most that the kernel and everything that the lab started had together, looked at
every two seconds (it takes some of their time); *disk* is what the home folder holds at the end. The five
longest cells of a lesson are printed, too. With ``--claims`` the claims of a lesson are run with it, and
those that failed are printed: what it says about times holds on a machine that has nothing else to do, so
no test can hold it. The last line is ``notebooks: ratio=…``, all lessons together over 12 minutes.
"""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import nbformat
import psutil

from benchmarks._paired import Found, Memory, parser
from labkit.local import supervision
from labkit.runs import record as records

LIMIT = 12 * 60
ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
STARTS = ("cluster.start(", "storage.start(", "SparkSession.builder")


def _disk(home: Path) -> int:
    """Bytes of disk of a folder. What is deleted meanwhile counts as nothing."""
    found = 0
    for path in home.rglob("*"):
        with contextlib.suppress(OSError):
            found += path.lstat().st_blocks * 512
    return found


def with_claims(name: str, folder: Path) -> Path:
    """The solved lesson `name`, with all its claims, as a notebook in `folder`."""
    sys.path.insert(0, str(ROOT / "tools"))
    import additions
    import build
    import lesson

    source = ROOT / "lessons" / f"{name}.py"
    cells = [
        replace(cell, tags=(*cell.tags, "raises-exception")) if cell.is_claim else cell
        for cell in additions.complete(source, lesson.read(source))
    ]
    shutil.copy(FOLDER / "my_loop.py", folder)
    path = folder / f"{name}.ipynb"
    nbformat.write(build.notebook(cells, solutions=True, claims=True, timed=True), path)
    return path


def failed(notebook: nbformat.NotebookNode) -> list[str]:
    """The sources of the claims in a notebook that was run that did not hold."""
    claims = [cell for cell in notebook.cells if "claim" in cell.metadata.get("tags", ())]
    return [c.source for c in claims if any(output.output_type == "error" for output in c.outputs)]


def run(notebook: Path, home: Path) -> tuple[dict[str, float], list[tuple[float, str]]]:
    """({figure: seconds}, [(seconds, first line of the cell), …] longest first) of a lesson.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    from nbclient import NotebookClient

    chosen = {"LABKIT_HOME": str(home), "LABKIT_SMALL": "1", "LABKIT_PANEL": "text", "LABKIT_CHECK": "strict"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LABKIT_", "RAY_"))}
    told = nbformat.read(notebook, as_version=4)
    client = NotebookClient(
        told,
        timeout=600,
        kernel_name="python3",
        record_timing=True,
        resources={"metadata": {"path": str(notebook.parent)}},
    )
    began = time.time()
    try:
        with Memory(home, psutil.Process()) as memory:
            client.execute(env={**kept, **chosen})
    finally:
        whole = time.time() - began
        supervision.stop(home)
    cells = []
    first = None
    for cell in told.cells:
        at = cell.metadata.get("execution", {})
        if "iopub.execute_input" not in at or "shell.execute_reply" not in at:
            continue
        begin, end = (
            datetime.fromisoformat(at[name]).timestamp()
            for name in ("iopub.execute_input", "shell.execute_reply")
        )
        first = first or begin
        cells.append((end - begin, cell.source))
    starts = [record.seconds_to_start or 0 for record in records.find(home)]
    up = (first or began) - began
    up += sum(seconds for seconds, source in cells if any(start in source for start in STARTS)) + sum(starts)
    named = ((seconds, source.strip().splitlines()[0]) for seconds, source in cells)
    longest = sorted(named, reverse=True)[:5]
    longest += [(0.0, f"did not hold: {source}") for source in failed(told)]
    figures = {"whole": whole, "start-up": up, "work": whole - up, "runs": len(starts)}
    figures |= {"memory, GB": memory.most / 1e9, "disk, GB": _disk(home) / 1e9}
    return figures, longest


def main() -> None:
    options = parser(__doc__, repeat=1)
    options.add_argument("--lessons", nargs="+", help="their numbers; without it all")
    options.add_argument("--claims", action="store_true", help="run what the lessons claim, too")
    options = options.parse_args()
    found = Found("notebooks", ours="")
    notebooks = sorted((FOLDER / "solutions").glob("*.ipynb"))
    numbers = {path: path.stem.partition("_")[0] for path in notebooks}
    chosen = [path for path in notebooks if not options.lessons or numbers[path] in options.lessons]
    cells: dict[str, list] = {}
    for number in range(options.repeat):
        print(f"round {number + 1} of {options.repeat}", flush=True)
        for path in chosen:
            with (
                tempfile.TemporaryDirectory(prefix="lkb", ignore_cleanup_errors=True) as home,
                tempfile.TemporaryDirectory() as folder,
            ):
                lesson = with_claims(path.stem, Path(folder)) if options.claims else path
                figures, cells[path.stem] = run(lesson, Path(home))
            found.add(path.stem, figures)
            for seconds, line in cells[path.stem]:
                print(f"    {seconds:6.1f} s  {line}", flush=True)
    whole = sum(sorted(seconds)[len(seconds) // 2] for seconds in found.seconds["whole"].values())
    print(f"\nall together: {whole:.0f} s")
    found.beside["longest cells"] = cells
    found.finish(whole / LIMIT, json=options.json)


if __name__ == "__main__":
    main()
