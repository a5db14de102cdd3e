"""Leaves this machine's part and the lessons' part out of the wheel. Everything else is in pyproject.toml."""

from setuptools import setup
from setuptools.command.build_py import build_py

IN_A_CHECKOUT = ("labkit.local", "course")  # an editable install finds both there


class Wheel(build_py):
    """The wheel is what an engineer installs next to a Ray and a torch that exist: labkit alone."""

    def run(self) -> None:
        if not self.editable_mode:
            self.packages = [name for name in self.packages if not name.startswith(IN_A_CHECKOUT)]
        super().run()


setup(cmdclass={"build_py": Wheel})
