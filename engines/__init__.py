"""One training under six launchers, each run as a whole program and measured, for lesson 07 and `benchmarks`.

The programs are in `engines/programs`. They differ only in what their launcher needs.
"""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    comparison=("Comparison", "run"),
    launch=("ENGINES", "Engine", "Result"),
)
