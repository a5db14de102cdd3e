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
OTHER_HOME = "export LABKIT_HOME=/path/of/a/folder/that/you/can/write"
DATASETS = ("digits", "mnist", "rendered")

_FLAGS = {"1": True, "true": True, "yes": True, "on": True}
_FLAGS |= {"0": False, "false": False, "no": False, "off": False}
_URL = r"https?://[^/\s]+\S*"
# {setting: (its variable, {text: value} or a pattern, what the pattern allows)}
_RULES: dict[str, tuple] = {
    "small": ("LABKIT_SMALL", _FLAGS),
    "dataset": ("LABKIT_DATASET", {name: name for name in DATASETS}),
    "home": ("LABKIT_HOME", ".+", "the path of a folder"),
    "num_workers": ("LABKIT_WORKERS", "[1-9][0-9]{0,8}", "a whole number from 1"),
    "use_gpu": ("LABKIT_GPU", {"auto": None, **_FLAGS}),
    "preload": ("LABKIT_PRELOAD", _FLAGS),
    "panel": ("LABKIT_PANEL", {name: name for name in ("auto", "widgets", "text", "none")}),
    "hang_after": ("LABKIT_HANG_AFTER", "[0-9]{1,9}", "a whole number of seconds, 0 for never"),
    "mirror": ("LABKIT_MIRROR", f"{_URL}|(?!.*://).*", "an http address or the path of a folder"),
    "check_strict": ("LABKIT_CHECK", {"strict": True, **_FLAGS}),
    "ray_address": ("RAY_ADDRESS", ".+", "the address of a cluster"),
    "s3_endpoint": ("LABKIT_S3_ENDPOINT", _URL, "an address as in http://127.0.0.1:9000"),
    "s3_access_key": ("LABKIT_S3_ACCESS_KEY", ".+", "a string"),
    "s3_secret_key": ("LABKIT_S3_SECRET_KEY", ".+", "a string"),
}
VARIABLES = {name: variable for name, (variable, *_) in _RULES.items()}


def default_home() -> Path:
    """``.labkit`` in the checkout, or in the user's home folder if the checkout is read-only.

    It depends on where the package is, not on the current folder: a kernel runs in ``notebooks/`` and
    ``python -m labkit stop`` in the root, and both must find the same lab.
    """
    if (CHECKOUT / "pyproject.toml").is_file() and os.access(CHECKOUT, os.W_OK):
        return CHECKOUT / ".labkit"
    return Path(os.path.expanduser("~/.labkit")).absolute()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of the lab; docs/settings.md says more about each. `VARIABLES` has their variables."""

    small: bool = False  # small sizes, so that each lesson ends within minutes on 2 cores
    dataset: str = "digits"  # that lessons load
    home: Path = field(default_factory=default_home)  # of runs, objects, sockets and logs
    num_workers: int = 2  # that a lesson starts; from the environment: one per GPU of this machine, or 2
    use_gpu: bool = False  # whether each worker requests a GPU; "auto" looks at this machine
    preload: bool = True  # whether workers of the lab's own cluster are forked with their imports done
    panel: str = "auto"
    hang_after: int = 30  # seconds without a step after which the panel shows what ranks wait for; 0: never
    mirror: str | None = field(default=None, repr=False)  # of the data sets; it may have a password in it
    check_strict: bool = False  # whether a failed exercise check raises
    ray_address: str | None = None  # an existing cluster to use instead of starting one
    s3_endpoint: str | None = field(default=None, repr=False)  # a store to use instead of the embedded one
    s3_access_key: str | None = field(default=None, repr=False)
    s3_secret_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "home", Path(self.home))  # it may be a text

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> "Settings":
        """Read the settings from `env` (default: the environment of this process).

        Raises:
            LabError: a variable has a value that cannot be used.
        """
        from labkit import machine  # psutil takes longer than all else of `import labkit`

        env = os.environ if env is None else env
        texts = {name: str(env.get(variable, "")).strip() for name, variable in VARIABLES.items()}
        values = {name: cls._value(name, text) for name, text in texts.items() if text}
        gpus = 0 if values.get("use_gpu") is False else machine.visible_gpus()
        if values.get("use_gpu") is None:
            values["use_gpu"] = gpus > 0
        values.setdefault("num_workers", gpus or 2)  # without a GPU here, a cluster has them
        return cls(**values)

    @classmethod
    def _value(cls, name: str, text: str) -> Any:
        (variable, rule, *allowed), about = _RULES[name], cls.__dataclass_fields__[name]
        if isinstance(rule, Mapping):
            if text.lower() in rule:
                return rule[text.lower()]
            allowed = [f"one of {', '.join(rule)}"]
        elif re.fullmatch(rule, text, re.DOTALL):
            path = Path(os.path.expanduser(text)).absolute()
            return path if about.type is Path else int(text) if about.type is int else text
        shown = repr(text)[:200] if about.repr else "a text that is not shown"  # as in a repr
        fix = f"change it, or unset {variable}; docs/settings.md lists all settings"
        fact = f"its value is {shown}, and it can be {allowed[0]}"
        raise LabError(f"use the setting {name} ({variable})", fact, fix)

    @classmethod
    def given(cls, settings: "Settings | None") -> "Settings":
        """Return `settings`, or those of the environment if it is None; anything else is a `LabError`."""
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
