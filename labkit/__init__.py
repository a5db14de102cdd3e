"""labkit: what stands behind the lessons so that they can show only what they teach.

Nothing heavy is imported here. Each topic is a module: ``from labkit import cluster``.
"""

from labkit.errors import LabError
from labkit.settings import Settings

__all__ = ["LabError", "Settings", "__version__"]

__version__ = "0.1.0"
