"""Copies datasets/ into the wheel, as course/datasets/files. Everything else is in pyproject.toml.

A mapping in pyproject.toml would do the same, but fails in an editable install.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithDatasets(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # an editable install reads the checkout
            files = Path(self.build_lib, "labkit", "datasets", "files")
            python = shutil.ignore_patterns("*.py", "__pycache__")
            shutil.copytree("datasets", files, ignore=python, dirs_exist_ok=True)

    def get_source_files(self) -> list[str]:  # of the source distribution
        return [*super().get_source_files(), *map(str, Path("datasets").glob("*.*"))]


setup(cmdclass={"build_py": WithDatasets})
