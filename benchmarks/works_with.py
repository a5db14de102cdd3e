"""Run each library and engine of a list on two ranks, and write docs/works-with.md.

    python -m benchmarks works_with                       # all rows
    python -m benchmarks works_with accelerate lightning  # some

A row is a loop of about twenty lines in `_works_with/rows`, with a guess in its head that was written before
it was run (findings/README.md lists these). What it saw is added to `_works_with/seen.json`; `--page` writes
the page from that file. Install `_works_with/requirements.txt` with `pip install --no-deps -r` into
an environment next to the lab's.
The last line is ``works_with: rows=…``.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from benchmarks._works_with import page, table
from labkit import files
from labkit.local import cluster

ROOT = Path(__file__).resolve().parent.parent
SEEN = ROOT / "benchmarks" / "_works_with" / "seen.json"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks works_with", description=__doc__)
    parser.add_argument("rows", nargs="*", help="their keys; all if there are none")
    parser.add_argument("--page", action="store_true", help="write the page, and run nothing")
    parser.add_argument("--json", type=Path, default=SEEN, help="the file with what was seen")
    options = parser.parse_args()
    seen = json.loads(options.json.read_text()) if options.json.exists() else {}
    if not options.page:
        wanted = [row for row in table.rows() if not options.rows or row.key in options.rows]
        with cluster.start(nodes=1, cpus_per_node=4):
            for row in wanted:
                seen[row.key] = run(row)
                files.atomic_write(options.json, json.dumps(seen, indent=1))  # a test reads it meanwhile
    if options.page or not options.rows:
        (ROOT / "docs" / "works-with.md").write_text(page.write(table.rows(), seen), encoding="utf-8")
    print(f"works_with: rows={len(seen)}")


def run(row: table.Row) -> dict:
    """Run one row, and print what was seen."""
    from benchmarks._works_with.measure import measure

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="works") as folder:
        seen = measure(row, Path(folder))
    seconds = time.monotonic() - began
    print(f"\n{row.key}: {seen['facts']} {seconds:.0f} s")
    print(*seen["notes"], sep="\n  ", flush=True)
    seen["facts"] = {fact: seen["facts"].get(fact, False) for fact in row.asked}
    return seen | {
        "seconds": round(seconds, 1),
        "versions": page.versions(row.packages),
        "stack": page.stack(),
        "day": time.strftime("%Y-%m-%d"),
    }


if __name__ == "__main__":
    main()
