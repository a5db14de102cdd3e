"""Programs in processes of their own, which print what they measured as one JSON line after "seen "."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from labkit.settings import Settings

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
_SEEN = "seen "
ROOT = Path(__file__).parents[1]
# JupyterLab asks for ``jsonschema[format-nongpl]``: that installs rfc3987-syntax and lark, and every process
# of Ray that imports jsonschema compiles a grammar. The lab's constraints hold jsonschema back, so stock Ray
# gets these from a folder of their own on its PYTHONPATH.
_STOCK = ("jsonschema[format-nongpl]", "lark", "rfc3987-syntax")


def stock_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of Ray as pip installs it, without any setting of the lab."""
    folder = settings.home / "stock-packages"
    if not folder.exists():
        partial = folder.with_suffix(".part")
        shutil.rmtree(partial, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(partial), *_STOCK]
        if subprocess.run(command).returncode:
            raise SystemExit(
                f"could not install {', '.join(_STOCK)}: stock Ray is measured with them\n"
                "  fix: this benchmark needs a network, or a pip cache, once"
            )
        partial.rename(folder)
    return {**_without_settings(), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder)}


def lab_environment(home: Path) -> dict[str, str]:
    """Return the environment of a kernel of the lab with a home of its own."""
    environment = _without_settings()
    environment |= {"LABKIT_HOME": str(home), "LABKIT_PANEL": "none", "OMP_NUM_THREADS": "1"}
    return environment


def _without_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "LABKIT_"))}


def run(command: list[str], environment: Mapping[str, str] | None = None) -> list[Any]:
    """Run python with a command line, and return what each of its "seen " lines holds.

    Without an environment, it has this process's one, one thread, and this folder's modules.
    """
    if environment is None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", *command]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"it failed:\n{done.stdout}\n{done.stderr}")
    lines = [line for line in done.stdout.splitlines() if line.startswith(_SEEN)]
    return [json.loads(line.removeprefix(_SEEN)) for line in lines]


def run_in_torchrun(code: str, *arguments: str, environment: Mapping[str, str] | None = None) -> list[Any]:
    """Run code in two processes of torchrun, and return what `run` does."""
    return run([*TORCHRUN, "--no-python", sys.executable, "-c", code, *arguments], environment)


def show(measured: Any) -> None:
    """Print what a program measured, for `run`."""
    print(f"{_SEEN}{json.dumps(measured)}", flush=True)


def memory(process: psutil.Process) -> int:
    """Return the bytes of memory of a process, 0 if it has ended. Takes some milliseconds.

    A page that n processes share counts as 1/n of a page (PSS), so that a sum over forked processes is what
    they use together. Without PSS, as on macOS, shared pages are left out (USS).
    """
    with contextlib.suppress(psutil.Error):
        info = process.memory_full_info()
        return getattr(info, "pss", info.uss)
    return 0
