"""Ray as pip installs it: no setting of the lab, and the packages that come with JupyterLab by default.

JupyterLab asks for ``jsonschema[format-nongpl]``; that installs rfc3987-syntax and lark, and every process
of Ray that imports jsonschema compiles a grammar. The lab's constraints hold jsonschema back, so stock Ray
gets them from a folder of their own on its PYTHONPATH.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from labkit.settings import Settings

_STOCK = ("jsonschema[format-nongpl]", "lark", "rfc3987-syntax")


def packages(settings: Settings) -> Path:
    """The folder of those packages; made once."""
    folder = settings.home / "stock-packages"
    if not folder.exists():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(part), *_STOCK]
        if subprocess.run(command).returncode:
            raise SystemExit(
                f"could not install {', '.join(_STOCK)}: stock Ray is measured with them\n"
                "  fix: this benchmark needs a network, or a pip cache, once"
            )
        part.rename(folder)
    return folder


def _plain() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "LABKIT_"))}


def stock_environment(settings: Settings) -> dict[str, str]:
    """Of a process that has never heard of the lab."""
    return {**_plain(), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(packages(settings))}


def lab_environment(home: Path) -> dict[str, str]:
    """Of a kernel of the lab with a home of its own."""
    return {**_plain(), "LABKIT_HOME": str(home), "LABKIT_PANEL": "none", "OMP_NUM_THREADS": "1"}


def run(code: str, environment: Mapping[str, str], *arguments: object) -> str:
    """What a process that runs `code` printed."""
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"it failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout
