"""course: what only the lessons need. It uses labkit, which knows nothing of it.

Exercises and their checks, faults on purpose, parallel programs by hand, the data sets that ship, small
models, and the class.
"""

from pathlib import Path

from labkit.settings import PACKAGES

PACKAGES.append(Path(__file__).parent)
