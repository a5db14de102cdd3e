"""labkit: follow distributed training from a notebook, from outside. The lessons use it, too.

Nothing heavy is imported here. Each topic is a package: ``from labkit import cluster``.
"""

from labkit.errors import LabError
from labkit.settings import Settings

__all__ = ["LabError", "Settings", "__version__"]

__version__ = "1.0.0"
