"""Ray Tune: its panel, its callbacks, its checks."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    figures=(
        "curves",
        "parallel",
    ),
    panel=("SweepPanel",),
)
