"""The lab's settings, read from environment variables into a frozen object.

    >>> Settings.from_env({"LABKIT_SMALL": "1"}).small
    True

Every variable starts with ``LABKIT_``, except ``RAY_ADDRESS``, which is Ray's own.
"""

import contextlib
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.errors import LabError

PACKAGE_ROOT = Path(__file__).resolve().parent
CHECKOUT = PACKAGE_ROOT.parent  # the folder that has the package, in a checkout
NODE_NAME = "LABKIT_NODE"  # set on each node that the lab starts; elsewhere the host's name is used
VARIABLES = {
    "small": "LABKIT_SMALL",
    "dataset": "LABKIT_DATASET",
    "home": "LABKIT_HOME",
    "num_workers": "LABKIT_WORKERS",
    "use_gpu": "LABKIT_GPU",
    "preload": "LABKIT_PRELOAD",
    "panel": "LABKIT_PANEL",
    "hang_after": "LABKIT_HANG_AFTER",
    "mirror": "LABKIT_MIRROR",
    "check_strict": "LABKIT_CHECK",
    "ray_address": "RAY_ADDRESS",
    "s3_endpoint": "LABKIT_S3_ENDPOINT",
    "s3_access_key": "LABKIT_S3_ACCESS_KEY",
    "s3_secret_key": "LABKIT_S3_SECRET_KEY",
}
OTHER_HOME = "export LABKIT_HOME=/path/of/a/folder/that/you/can/write"
DATASETS = ("digits", "mnist", "fashion_mnist", "rendered")
PANELS = ("auto", "widgets", "text", "none")
_FLAGS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
_URL = re.compile(r"https?://[^/\s]+\S*$")


def default_home() -> Path:
    """``.labkit`` in the checkout; if the checkout is read-only, because several people share it, in the
    user's home folder.

    It depends on where the package is, not on the current folder: a kernel runs in ``notebooks/`` and
    ``python -m labkit stop`` in the root, and both must find the same lab.
    """
    if (CHECKOUT / "pyproject.toml").is_file() and os.access(CHECKOUT, os.W_OK):
        return CHECKOUT / ".labkit"
    return Path(os.path.expanduser("~/.labkit")).absolute()


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
        hang_after: seconds without a step after which the panel of Ray Train says what each rank waits for
            (``LABKIT_HANG_AFTER``); 0: never.
        mirror: the server or folder to get data sets from, instead of their own servers (``LABKIT_MIRROR``).
        check_strict: whether a failed exercise check raises (``LABKIT_CHECK=strict``).
        ray_address: an existing cluster to use instead of starting one (``RAY_ADDRESS``).
        s3_endpoint, s3_access_key, s3_secret_key: an object store to use instead of the embedded one
            (``LABKIT_S3_ENDPOINT``, ``LABKIT_S3_ACCESS_KEY``, ``LABKIT_S3_SECRET_KEY``).

    Raises:
        LabError: a value cannot be used.
    """

    small: bool = False
    dataset: str = "digits"
    home: Path = field(default_factory=default_home)
    num_workers: int = 2
    use_gpu: bool = False
    preload: bool = True
    panel: str = "auto"
    hang_after: int = 30
    mirror: str | None = field(default=None, repr=False)  # a URL may have a password in it
    check_strict: bool = False
    ray_address: str | None = None
    s3_endpoint: str | None = field(default=None, repr=False)
    s3_access_key: str | None = field(default=None, repr=False)
    s3_secret_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.home, str | os.PathLike):
            object.__setattr__(self, "home", Path(self.home))
        count = type(self.num_workers) is int and self.num_workers > 0
        self._require("num_workers", count, "a whole number from 1")
        self._require("home", isinstance(self.home, Path), "the path of a folder")
        after = type(self.hang_after) is int and self.hang_after >= 0
        self._require("hang_after", after, "a whole number of seconds, 0 for never")
        for name, allowed in (("dataset", DATASETS), ("panel", PANELS)):
            self._require(name, getattr(self, name) in allowed, f"one of {', '.join(allowed)}")
        for name in ("small", "use_gpu", "preload", "check_strict"):
            flags = "1 or 0, in Python True or False"
            flags = {"use_gpu": f"auto, {flags}", "check_strict": f"strict, {flags}"}.get(name, flags)
            self._require(name, isinstance(getattr(self, name), bool), flags)
        for name in ("mirror", "ray_address", "s3_endpoint", "s3_access_key", "s3_secret_key"):
            self._require(name, isinstance(getattr(self, name), str | None), "a string or None")
        for name, url in (("s3_endpoint", self.s3_endpoint), ("mirror", self.mirror)):
            good = not url or _URL.match(url) or (name == "mirror" and "://" not in url)
            or_folder = " or the path of a folder" if name == "mirror" else ""
            self._require(name, good, f"an address as in http://127.0.0.1:9000{or_folder}")

    def _require(self, name: str, good: object, expected: str) -> None:
        """Raise a `LabError` unless `good`. What has no place in a repr has none in the error."""
        if not good:
            value, public = getattr(self, name), self.__dataclass_fields__[name].repr
            shown = repr(value) if public else f"a {type(value).__name__} that is not shown"
            raise LabError(
                f"use the setting {name} ({VARIABLES[name]})",
                f"its value is {shown[:200]}, and it can be {expected}",
                f"change it, or unset {VARIABLES[name]}; help(labkit.Settings) lists all settings",
            )

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> "Settings":
        """Read the settings from `env` (default: the environment of this process).

        Raises:
            LabError: a variable has a value that cannot be used.
        """
        env = os.environ if env is None else env
        texts = {name: str(env.get(variable, "")).strip() for name, variable in VARIABLES.items()}
        values: dict[str, Any] = {name: text for name, text in texts.items() if text}
        # A text that cannot be converted stays a text, and is refused when the object is created.
        for name in values.keys() & {"small", "preload", "use_gpu", "check_strict", "dataset", "panel"}:
            values[name] = _FLAGS.get(text := texts[name].lower(), text)
        if values.get("check_strict") == "strict":
            values["check_strict"] = True
        if values.get("use_gpu", "auto") == "auto":
            values["use_gpu"] = _local_gpus() > 0
        if re.fullmatch(r"[0-9]{1,9}", texts["num_workers"]):
            values["num_workers"] = int(texts["num_workers"])
        elif not texts["num_workers"] and values["use_gpu"] is True:
            values["num_workers"] = _local_gpus() or 2  # none here: a cluster has them
        if re.fullmatch(r"[0-9]{1,9}", texts["hang_after"]):
            values["hang_after"] = int(texts["hang_after"])
        if texts["home"]:
            values["home"] = Path(os.path.expanduser(texts["home"])).absolute()
        return cls(**values)

    @classmethod
    def given(cls, settings: "Settings | None") -> "Settings":
        """Return `settings`, or those of the environment if it is None.

        Raises:
            LabError: it is something else, or the environment has a value that cannot be used.
        """
        if settings is not None and not isinstance(settings, Settings):
            fact = f"settings is of type {type(settings).__name__}, and labkit.Settings or None is expected"
            raise LabError("read the settings", fact, "settings=labkit.Settings(small=True)")
        return cls.from_env() if settings is None else settings

    def make_home(self) -> Path:
        """Create the home folder if it is missing, and return it.

        Raises:
            LabError: the folder cannot be created or written to.
        """
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.home):
                return self.home
        except (OSError, ValueError) as error:
            fact = f"{str(self.home)[:200]}: {getattr(error, 'strerror', None) or error}"
            raise LabError("use the lab's home folder", fact, OTHER_HOME) from None


@contextlib.contextmanager
def logs_held_back(level: int) -> Iterator[None]:
    """Drop log records up to `level` in this block, of all loggers."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process for the duration of the block; leave all others alone."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _local_gpus() -> int:
    """How many NVIDIA GPUs processes of this machine may use; torch is not imported."""
    from labkit import machine

    return machine.visible_gpus()
