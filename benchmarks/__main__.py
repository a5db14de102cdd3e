"""All benchmarks, or one of them.

python -m benchmarks                          # which there are
python -m benchmarks reporting --repeat 50    # one, with its options
python -m benchmarks all                      # each in turn, in a process of its own: hours
"""

import ast
import runpy
import subprocess
import sys
from pathlib import Path


def main() -> None:
    folder = Path(__file__).parent
    paths = {path.stem: path for path in sorted(folder.glob("[a-z]*.py"))}
    name = sys.argv[1] if len(sys.argv) > 1 else None
    if name in paths:
        sys.argv = [f"benchmarks.{name}", *sys.argv[2:]]
        runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
        return
    if name == "all":
        sys.exit(_all(list(paths)))
    if name is not None:
        print(f"there is no benchmark {name!r}; there are:")
    for stem, path in paths.items():
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        print(f"  {stem:16} {docstring.splitlines()[0]}")
    print('one of them: make bench BENCH_ARGS="reporting", or python -m benchmarks reporting --help')
    sys.exit(0 if name is None else 2)


def _all(names: list[str]) -> int:
    """Run them one after the other, print the last line of each, and return how many failed."""
    last: dict[str, str] = {}
    for name in names:
        print(f"\n== {name}", flush=True)
        command = [sys.executable, "-m", "benchmarks", name]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for line in running.stdout:
            print(line, end="", flush=True)
            last[name] = line.rstrip()
        if running.wait():
            last[name] = f"{name}: FAILED"
    print("\n" + "\n".join(last.values()))
    return sum(line.endswith(": FAILED") for line in last.values())


if __name__ == "__main__":
    main()
