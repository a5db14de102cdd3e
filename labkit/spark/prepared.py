"""The Spark that this process has prepared on this machine, if it has; `labkit.local.spark` notes it here."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Prepared:
    """What a panel needs to know of it."""

    home: Path  # the lab's
    folder: Path  # configuration, what Spark writes, and logs
    mark: dict[str, str]  # the environment variable by which a process belongs to it
    ranks: Callable[[], list[psutil.Process]]  # the ranks that torchrun has started for this process


_prepared: Prepared | None = None


def use(prepared: Prepared) -> None:
    """Note what this process has prepared last."""
    global _prepared
    _prepared = prepared


def current(home: Path) -> Prepared | None:
    """Return what this process has prepared in a home, as long as its variables are set."""
    if _prepared is None or _prepared.home != home:
        return None
    return _prepared if os.environ.get("SPARK_CONF_DIR") == str(_prepared.folder / "conf") else None


def folder_of(home: Path) -> Path:
    """Return the folder of this process's Spark in a home."""
    return home / "spark" / f"spark-{os.getpid()}"
