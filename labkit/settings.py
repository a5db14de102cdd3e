"""What the environment asks of the lab, read once into a frozen object.

    >>> Settings.from_env({"LABKIT_SMALL": "1"}).small
    True

Every variable starts with ``LABKIT_``, but for ``RAY_ADDRESS``, which is Ray's own.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from labkit.errors import SettingsError

__all__ = [
    "CHECKOUT",
    "DATASETS",
    "NAMES",
    "NODE_NAME",
    "OTHER_HOME",
    "PACKAGE_ROOT",
    "Settings",
    "default_home",
    "home_fault",
    "nearest",
]

NAMES = (
    "LABKIT_CHECK", "LABKIT_DATASET", "LABKIT_GPU", "LABKIT_HOME", "LABKIT_MIRROR", "LABKIT_PANEL",
    "LABKIT_PRELOAD", "LABKIT_S3_ACCESS_KEY", "LABKIT_S3_ENDPOINT", "LABKIT_S3_SECRET_KEY", "LABKIT_SMALL",
    "LABKIT_WORKERS",
)  # fmt: skip
OTHER_HOME = "export LABKIT_HOME=/path/of/a/folder/that/you/can/write"
DATASETS = ("digits", "mnist", "fashion_mnist", "rendered")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
PACKAGE_ROOT = Path(__file__).resolve().parent
CHECKOUT = PACKAGE_ROOT.parent  # where the package lies in a checkout
NODE_NAME = "LABKIT_NODE"  # set for each node that the lab starts; elsewhere the host's name serves


def default_home() -> Path:
    """Where the lab keeps its things: ``.labkit`` in the checkout, else in the user's home.

    A checkout that cannot be written is one that several people share: each then has a lab at home.
    It hangs on where the package lies and not on the current folder: a kernel runs in
    ``notebooks/`` and ``python -m labkit stop`` in the root, and both must find the same lab.

    Raises:
        SettingsError: the checkout is read-only, and this user has no home folder.
    """
    if (CHECKOUT / "pyproject.toml").is_file() and os.access(CHECKOUT, os.W_OK):
        return CHECKOUT / ".labkit"
    try:
        return Path.home().absolute() / ".labkit"
    except RuntimeError:  # neither HOME nor an entry in /etc/passwd
        fact = "LABKIT_HOME is not set, and this user has no home folder"
        raise SettingsError("find a folder for the lab", fact, OTHER_HOME) from None


def home_fault(home: Path) -> str | None:
    """Why the lab could not keep its files in `home`; None if it could. Nothing is created to find out."""
    fault = None
    try:
        there = nearest(home)
        name = "it" if there == home else there
        if not there.is_dir():
            fault = f"{name} is a file, not a folder"
        elif not os.access(there, os.W_OK | os.X_OK):
            fault = f"{name} is not writable"
        elif there != home and shutil.disk_usage(there).total == 0:
            fault = f"{name} is not on a disk"  # /proc and /sys
    except OSError as error:
        fault = error.strerror
    return f"{_short(str(home))}: {fault}" if fault else None


def nearest(path: Path) -> Path:
    """`path`, or the nearest folder above it that exists.

    Raises:
        OSError: the path cannot exist: a part of it is too long, or may not be entered.
    """
    while True:
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            path = path.parent
        else:
            return path


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of the lab.

    Attributes:
        small: CI size, so that each lesson ends within minutes on 2 cores (``LABKIT_SMALL``).
        dataset: the data set that lessons load, one of `DATASETS` (``LABKIT_DATASET``).
        home: folder of runs, objects, sockets and logs (``LABKIT_HOME``).
        num_workers: workers that a lesson starts (``LABKIT_WORKERS``; default: one per GPU
            where GPUs are used, else 2).
        use_gpu: whether workers ask for a GPU each (``LABKIT_GPU``: ``auto``, ``0``, ``1``).
            ``auto`` looks at this machine; for a remote cluster with GPUs, say ``1``.
        preload: whether workers of the lab's own cluster get their imports from a process that has
            done them (``LABKIT_PRELOAD``); 0 starts them as Ray does it by itself.
        panel: how progress is drawn: ``auto``, ``widgets``, ``text``, ``none`` (``LABKIT_PANEL``).
        mirror: a server or a folder to take data sets from, and no other (``LABKIT_MIRROR``).
        check_strict: a failed exercise check raises (``LABKIT_CHECK=strict``).
        ray_address: an existing cluster to use instead of starting one (``RAY_ADDRESS``).
        s3_endpoint, s3_access_key, s3_secret_key: an object store to use instead of the
            embedded one (``LABKIT_S3_ENDPOINT``, ``LABKIT_S3_ACCESS_KEY``, ``LABKIT_S3_SECRET_KEY``).
    """

    small: bool = False
    dataset: str = "digits"
    home: Path = field(default_factory=default_home)
    num_workers: int = 2
    use_gpu: bool = False
    preload: bool = True
    panel: str = "auto"
    mirror: str | None = field(default=None, repr=False)  # a URL may have a password in it
    check_strict: bool = False
    ray_address: str | None = None
    s3_endpoint: str | None = None
    s3_access_key: str | None = field(default=None, repr=False)
    s3_secret_key: str | None = field(default=None, repr=False)

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> "Settings":
        """Read the settings from `env` (default: the process's environment).

        Raises:
            SettingsError: a value is not one of those allowed.
        """
        env = os.environ if env is None else env
        gpu = _choice(env, "LABKIT_GPU", ("auto", "0", "1"), "auto")
        gpus = 0 if gpu == "0" else max(_local_gpus(), int(gpu == "1"))
        return cls(
            small=_flag(env, "LABKIT_SMALL"),
            dataset=_choice(env, "LABKIT_DATASET", DATASETS, "digits"),
            home=_home(env),
            num_workers=_count(env, "LABKIT_WORKERS", max(gpus, 1) if gpus else 2),
            use_gpu=gpus > 0,
            preload=_flag(env, "LABKIT_PRELOAD", default="1"),
            panel=_choice(env, "LABKIT_PANEL", ("auto", "widgets", "text", "none"), "auto"),
            mirror=_url(env, "LABKIT_MIRROR", or_folder=True),
            check_strict=_choice(env, "LABKIT_CHECK", ("", "strict"), "") == "strict",
            ray_address=_text(env, "RAY_ADDRESS"),
            s3_endpoint=_url(env, "LABKIT_S3_ENDPOINT"),
            s3_access_key=_text(env, "LABKIT_S3_ACCESS_KEY"),
            s3_secret_key=_text(env, "LABKIT_S3_SECRET_KEY"),
        )

    def make_home(self) -> Path:
        """Create the home folder if it is missing, and return it.

        Raises:
            SettingsError: the folder cannot be created or written to.
        """
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.home):
                return self.home
        except OSError as error:
            fact = home_fault(self.home) or f"{self.home}: {error.strerror}"
            raise SettingsError("use the lab's home folder", fact, OTHER_HOME) from None


def _local_gpus() -> int:
    """Number of NVIDIA GPUs that processes of this machine may use; torch is not imported."""
    from labkit import machine

    return machine.visible_gpus()


def _refuse(name: str, value: str, allowed: str) -> SettingsError:
    return SettingsError(
        f"read the setting {name}",
        f"its value is {_short(value)!r}, and it takes {allowed}",
        f"export {name}=… with one of those, or unset {name}",
    )


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:199]}…"


def _text(env: Mapping[str, str], name: str) -> str | None:
    return env.get(name, "").strip() or None


def _url(env: Mapping[str, str], name: str, *, or_folder: bool = False) -> str | None:
    """An address of a server, or the path of a folder where `or_folder` allows one."""
    value = _text(env, name)
    if value is None or (or_folder and "://" not in value) or re.match(r"https?://[^/\s]+\S*$", value):
        return value
    allowed = "an address as in http://127.0.0.1:9000" + (" or the path of a folder" if or_folder else "")
    raise _refuse(name, re.sub(r"[^/@]*@", "", value), allowed)  # without a password


def _home(env: Mapping[str, str]) -> Path:
    named = _text(env, "LABKIT_HOME")
    if named is None:
        return default_home()
    try:
        return Path(named).expanduser().absolute()
    except RuntimeError:  # the ~ of a user who does not exist
        raise _refuse("LABKIT_HOME", named, "the path of a folder") from None


def _flag(env: Mapping[str, str], name: str, default: str = "0") -> bool:
    value = env.get(name, "").strip().lower() or default
    if value not in _TRUE + _FALSE:
        raise _refuse(name, value, "1 or 0")
    return value in _TRUE


def _choice(env: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = env.get(name, "").strip().lower() or default
    if value not in allowed:
        raise _refuse(name, value, "one of " + ", ".join(a for a in allowed if a))
    return value


def _count(env: Mapping[str, str], name: str, default: int) -> int:
    value = env.get(name, "").strip() or str(default)
    # isdigit() also knows ², and int() does not.
    if not (value.isascii() and value.isdigit()) or len(value) > 9 or int(value) < 1:
        raise _refuse(name, value, "a whole number from 1 on")
    return int(value)
