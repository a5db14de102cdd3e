"""One training under six launchers, each run as a whole program and measured, for lesson 07 and `benchmarks`.

The programs are in `engines/programs`. They differ only in what their launcher needs.
"""

from engines.comparison import Comparison, run
from engines.launch import ENGINES, Engine, Result

__all__ = ["ENGINES", "Comparison", "Engine", "Result", "run"]
