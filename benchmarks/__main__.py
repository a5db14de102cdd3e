"""All benchmarks, or one of them.

python -m benchmarks                          # which there are
python -m benchmarks reporting --rounds 50    # one, with its options
"""

import ast
import runpy
import sys
from pathlib import Path


def main() -> None:
    folder = Path(__file__).parent
    found = {path.stem: path for path in sorted(folder.glob("*.py")) if not path.stem.startswith("_")}
    name = sys.argv[1] if len(sys.argv) > 1 else None
    if name in found:
        sys.argv = [f"benchmarks.{name}", *sys.argv[2:]]
        runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
        return
    if name is not None:
        print(f"there is no benchmark {name!r}; there are:")
    for stem, path in found.items():
        about = ast.get_docstring(ast.parse(path.read_text())) or ""
        print(f"  {stem:10} {about.splitlines()[0]}")
    print('one of them: make bench BENCH_ARGS="reporting", or python -m benchmarks reporting --help')
    sys.exit(0 if name is None else 2)


if __name__ == "__main__":
    main()
