"""The lab's settings, read from environment variables into a frozen object.

    >>> Settings.from_env({"LABKIT_SMALL": "1"}).small
    True

Every variable starts with ``LABKIT_``, except ``RAY_ADDRESS``, which is Ray's own.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from labkit.errors import SettingsError

PACKAGE_ROOT = Path(__file__).resolve().parent
CHECKOUT = PACKAGE_ROOT.parent  # the folder that has the package, in a checkout
NODE_NAME = "LABKIT_NODE"  # set on each node that the lab starts; elsewhere the host's name is used
NAMES = (
    "LABKIT_CHECK", "LABKIT_DATASET", "LABKIT_GPU", "LABKIT_HOME", "LABKIT_MIRROR", "LABKIT_PANEL",
    "LABKIT_PRELOAD", "LABKIT_S3_ACCESS_KEY", "LABKIT_S3_ENDPOINT", "LABKIT_S3_SECRET_KEY", "LABKIT_SMALL",
    "LABKIT_WORKERS",
)  # fmt: skip
OTHER_HOME = "export LABKIT_HOME=/path/of/a/folder/that/you/can/write"
DATASETS = ("digits", "mnist", "fashion_mnist", "rendered")
PANELS = ("auto", "widgets", "text", "none")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def default_home() -> Path:
    """``.labkit`` in the checkout; if the checkout is read-only, because several people share it, in the
    user's home folder.

    It depends on where the package is, not on the current folder: a kernel runs in ``notebooks/`` and
    ``python -m labkit stop`` in the root, and both must find the same lab.

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
    except (OSError, ValueError) as error:
        fault = getattr(error, "strerror", None) or str(error)
    return f"{_short(str(home))}: {fault}" if fault else None


def nearest(path: Path) -> Path:
    """`path`, or the nearest folder above it that exists.

    Raises:
        OSError: the path cannot exist: a part of it is too long, or cannot be entered.
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
        small: small sizes, so that each lesson ends within minutes on 2 cores (``LABKIT_SMALL``).
        dataset: the data set that lessons load, one of `DATASETS` (``LABKIT_DATASET``).
        home: the folder of runs, objects, sockets and logs (``LABKIT_HOME``).
        num_workers: how many workers a lesson starts (``LABKIT_WORKERS``; default: one per GPU if GPUs are
            used, else 2).
        use_gpu: whether each worker requests a GPU (``LABKIT_GPU``: ``auto``, ``0``, ``1``). ``auto`` looks
            at this machine; use ``1`` for a remote cluster with GPUs.
        preload: whether workers of the lab's own cluster are forked from a process that has done their
            imports (``LABKIT_PRELOAD``). With 0, Ray starts them itself.
        panel: how progress is shown, one of `PANELS` (``LABKIT_PANEL``).
        mirror: the server or folder to get data sets from, instead of their own servers (``LABKIT_MIRROR``).
        check_strict: whether a failed exercise check raises (``LABKIT_CHECK=strict``).
        ray_address: an existing cluster to use instead of starting one (``RAY_ADDRESS``).
        s3_endpoint, s3_access_key, s3_secret_key: an object store to use instead of the embedded one
            (``LABKIT_S3_ENDPOINT``, ``LABKIT_S3_ACCESS_KEY``, ``LABKIT_S3_SECRET_KEY``).

    Raises:
        SettingsError: a value cannot be used.
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

    def __post_init__(self) -> None:
        _require(self, "dataset", self.dataset in DATASETS, f"one of {', '.join(DATASETS)}")
        _require(self, "panel", self.panel in PANELS, f"one of {', '.join(PANELS)}")
        count = isinstance(self.num_workers, int) and not isinstance(self.num_workers, bool)
        _require(self, "num_workers", count and self.num_workers > 0, "a whole number from 1")
        _require(self, "home", isinstance(self.home, str | os.PathLike), "the path of a folder")
        object.__setattr__(self, "home", Path(self.home))
        for name in ("small", "use_gpu", "preload", "check_strict"):
            _require(self, name, isinstance(getattr(self, name), bool), "True or False")
        for name in ("mirror", "ray_address", "s3_endpoint", "s3_access_key", "s3_secret_key"):
            _require(self, name, isinstance(getattr(self, name), str | None), "a string or None", secret=True)

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> "Settings":
        """Read the settings from `env` (default: the environment of this process).

        Raises:
            SettingsError: a variable has a value that cannot be used.
        """
        env = os.environ if env is None else env
        if not isinstance(env, Mapping):
            fact, fix = f"{_short(repr(env))} is no mapping", 'Settings.from_env({"LABKIT_SMALL": "1"})'
            raise SettingsError("read the settings", fact, fix)
        gpu = _choice(env, "LABKIT_GPU", ("auto", "0", "1"))
        gpus = 0 if gpu == "0" else max(_local_gpus(), int(gpu == "1"))
        return cls(
            small=_flag(env, "LABKIT_SMALL", default=False),
            dataset=_choice(env, "LABKIT_DATASET", DATASETS),
            home=_home(env),
            num_workers=_count(env, "LABKIT_WORKERS", default=gpus or 2),
            use_gpu=gpus > 0,
            preload=_flag(env, "LABKIT_PRELOAD", default=True),
            panel=_choice(env, "LABKIT_PANEL", PANELS),
            mirror=_url(env, "LABKIT_MIRROR", or_folder=True),
            check_strict=_choice(env, "LABKIT_CHECK", ("", "strict")) == "strict",
            ray_address=_text(env, "RAY_ADDRESS") or None,
            s3_endpoint=_url(env, "LABKIT_S3_ENDPOINT"),
            s3_access_key=_text(env, "LABKIT_S3_ACCESS_KEY") or None,
            s3_secret_key=_text(env, "LABKIT_S3_SECRET_KEY") or None,
        )

    @classmethod
    def given(cls, settings: "Settings | None") -> "Settings":
        """Return `settings`, or those of the environment if it is None.

        Raises:
            SettingsError: it is something else, or the environment has a value that cannot be used.
        """
        if settings is not None and not isinstance(settings, Settings):
            fact = f"settings is {_short(repr(settings))}, and labkit.Settings or None is expected"
            raise SettingsError("read the settings", fact, "settings=labkit.Settings(small=True)")
        return cls.from_env() if settings is None else settings

    def make_home(self) -> Path:
        """Create the home folder if it is missing, and return it.

        Raises:
            SettingsError: the folder cannot be created or written to.
        """
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.home):
                return self.home
        except (OSError, ValueError) as error:
            fact = home_fault(self.home) or f"{self.home}: {error}"
            raise SettingsError("use the lab's home folder", fact, OTHER_HOME) from None


def _local_gpus() -> int:
    """How many NVIDIA GPUs processes of this machine may use; torch is not imported."""
    from labkit import machine

    return machine.visible_gpus()


def _require(settings: Settings, name: str, good: bool, expected: str, *, secret: bool = False) -> None:
    if not good:
        value = getattr(settings, name)
        shown = f"of type {type(value).__name__}" if secret else _short(repr(value))
        fact = f"{name} is {shown}, and {expected} is expected"
        raise SettingsError("make settings", fact, f"change {name}; help(labkit.Settings) lists all settings")


def _refuse(name: str, value: str, expected: str) -> SettingsError:
    return SettingsError(
        f"read the setting {name}",
        f"its value is {_short(value)!r}, and it can be {expected}",
        f"export {name}=… with one of those, or unset {name}",
    )


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:199]}…"


def _text(env: Mapping[str, str], name: str) -> str:
    return str(env.get(name, "")).strip()


def _url(env: Mapping[str, str], name: str, *, or_folder: bool = False) -> str | None:
    """The address of a server; or the path of a folder, if `or_folder` allows one."""
    value = _text(env, name)
    if not value or (or_folder and "://" not in value) or re.match(r"https?://[^/\s]+\S*$", value):
        return value or None
    expected = "an address as in http://127.0.0.1:9000" + (" or the path of a folder" if or_folder else "")
    raise _refuse(name, re.sub(r"[^/@]*@", "", value), expected)  # without a password


def _home(env: Mapping[str, str]) -> Path:
    value = _text(env, "LABKIT_HOME")
    try:
        return Path(value).expanduser().absolute() if value else default_home()
    except RuntimeError:  # the ~ of a user who does not exist
        raise _refuse("LABKIT_HOME", value, "the path of a folder") from None


def _flag(env: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = _text(env, name).lower() or ("1" if default else "0")
    if value not in _TRUE + _FALSE:
        raise _refuse(name, value, "1 or 0")
    return value in _TRUE


def _choice(env: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """One of `allowed`, the first of which is the default."""
    value = _text(env, name).lower() or allowed[0]
    if value not in allowed:
        raise _refuse(name, value, "one of " + ", ".join(filter(None, allowed)))
    return value


def _count(env: Mapping[str, str], name: str, *, default: int) -> int:
    value = _text(env, name) or str(default)
    if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < 1:
        raise _refuse(name, value, "a whole number from 1")
    return int(value)
