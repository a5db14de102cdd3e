"""labkit: the helper package of the lessons. It keeps what they do not teach out of their cells.

Nothing heavy is imported here. Each topic is a package: ``from labkit import cluster``.
"""

from labkit.errors import LabError
from labkit.settings import Settings

__all__ = ["LabError", "Settings", "__version__"]

__version__ = "1.0.0"
