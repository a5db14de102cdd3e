"""One training by several launchers: each is run as a whole program and measured."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    compare=(
        "Comparison",
        "changed_lines",
        "run",
    ),
    launches=(
        "ENGINES",
        "Engine",
    ),
    stopwatch=(
        "Stopwatch",
        "Task",
    ),
)
