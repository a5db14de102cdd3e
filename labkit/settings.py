"""The lab's settings, read from environment variables into a frozen object.

    >>> Settings.from_env({"LABKIT_SMALL": "1"}).small
    True

Every variable starts with ``LABKIT_``, except ``RAY_ADDRESS``, which is Ray's own.
"""

import contextlib
import functools
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from labkit import machine
from labkit.errors import BadInput, LabError

PACKAGE_ROOT = Path(__file__).resolve().parent
# Packages whose frames aren't the reader's, and which a cluster elsewhere gets. `course` adds itself.
PACKAGES = [PACKAGE_ROOT]
CHECKOUT = PACKAGE_ROOT.parent  # the folder that has the package, in a checkout
NODE_NAME = "LABKIT_NODE"  # set on each node that the lab starts; elsewhere the host's name is used
OTHER_HOME = "export LABKIT_HOME=/path/of/a/folder/that/you/can/write"
DATASETS = ("digits", "mnist")

_PANELS = {name: name for name in ("auto", "widgets", "text", "none")}
_FLAGS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_URL = r"https?://[^/\s]+\S*"
_EXAMPLE = "an address as in http://127.0.0.1:9000"


def default_home() -> Path:
    """Return ``.labkit`` in the checkout, or in the user's home folder if the checkout is read-only."""
    if (CHECKOUT / "pyproject.toml").is_file() and os.access(CHECKOUT, os.W_OK):
        return CHECKOUT / ".labkit"
    return _path("~/.labkit")


@functools.cache
def absolute(path: str) -> str:
    """Return the absolute form of a path that a setting or an argument names, ``~`` included.

    The first answer of a process stays: after a `%cd`, the same relative path is still the same folder.
    """
    return str(Path(path).expanduser().absolute())


def _path(text: str) -> Path:
    return Path(absolute(text))


def _setting(
    variable: str,
    default: Any,
    rule: Mapping[str, Any] | str,
    allowed: str = "",
    *,
    read: Callable[[str], Any] = str,
    secret: bool = False,
) -> Any:
    """Return a field with its variable.

    The variable's text is a key of `rule`, or matches it and is read by `read`. `allowed` is for the error.
    """
    metadata = {
        "variable": variable,
        "rule": rule,
        "allowed": allowed or f"one of {', '.join(rule)}",
        "read": read,
    }
    return field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of the lab, as docs/settings.md explains them; `VARIABLES` has their variables."""

    small: bool = _setting("LABKIT_SMALL", False, _FLAGS)
    dataset: str = _setting("LABKIT_DATASET", "digits", {name: name for name in DATASETS})
    home: Path = _setting("LABKIT_HOME", None, ".+", "the path of a folder", read=_path)
    num_workers: int = _setting(
        "LABKIT_WORKERS",
        2,
        "[1-9][0-9]{0,8}",
        "a whole number from 1",
        read=int,
    )
    use_gpu: bool = _setting("LABKIT_GPU", False, {"auto": None, **_FLAGS})
    preload: bool = _setting("LABKIT_PRELOAD", True, _FLAGS)
    panel: str = _setting("LABKIT_PANEL", "auto", _PANELS)
    hang_after: int = _setting(
        "LABKIT_HANG_AFTER",
        30,
        "[0-9]{1,9}",
        "whole seconds, or 0 for never",
        read=int,
    )
    compare_weights: bool = _setting("LABKIT_COMPARE_WEIGHTS", True, _FLAGS)
    # Whether a wrong answer raises, and how many times its limit a check may take.
    check_strict: int = _setting("LABKIT_CHECK", 0, {"strict": 1, "patient": 10, **_FLAGS})
    ray_address: str | None = _setting("RAY_ADDRESS", None, ".+", "the address of a cluster")
    s3_endpoint: str | None = _setting("LABKIT_S3_ENDPOINT", None, _URL, _EXAMPLE, secret=True)
    s3_access_key: str | None = _setting("LABKIT_S3_ACCESS_KEY", None, ".+", "a text", secret=True)
    s3_secret_key: str | None = _setting("LABKIT_S3_SECRET_KEY", None, ".+", "a text", secret=True)
    s3_bucket: str = _setting("LABKIT_S3_BUCKET", "lab", ".+", "the name of a bucket")

    def __post_init__(self) -> None:
        home = self.home or default_home()
        object.__setattr__(self, "home", _path(os.fspath(home)))  # it may be a text

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> "Settings":
        """Read the settings from `env` (default: os.environ); a `LabError` says which value can't be used.

        Of this process's own variables, relative paths become absolute: its children have another folder.
        """
        if env is None:
            env = os.environ
            home = env.get("LABKIT_HOME", "").strip()
            if home:
                os.environ["LABKIT_HOME"] = absolute(home)
        values = {}
        for setting in fields(cls):
            text = str(env.get(setting.metadata["variable"], "")).strip()
            if text:
                values[setting.name] = _value(setting, text)
        gpus = 0
        if values.get("use_gpu") is not False:
            gpus = machine.visible_gpus()
        if values.get("use_gpu") is None:
            values["use_gpu"] = gpus > 0
        values.setdefault("num_workers", gpus or 2)  # without a GPU here, a cluster has them
        return cls(**values)

    def make_home(self) -> Path:
        """Create the home folder if it is missing, and return it; a `LabError` if it can't be written to."""
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.home):
                return self.home
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise LabError(
                "use the lab's home folder",
                f"{str(self.home)[:200]}: {reason}",
                OTHER_HOME,
            ) from None


VARIABLES: dict[str, str] = {setting.name: setting.metadata["variable"] for setting in fields(Settings)}


def _value(setting: Field, text: str) -> Any:
    """Convert a variable's text to the value of its setting."""
    variable = setting.metadata["variable"]
    rule = setting.metadata["rule"]
    if isinstance(rule, Mapping) and text.lower() in rule:
        return rule[text.lower()]
    if isinstance(rule, str) and re.fullmatch(rule, text, re.DOTALL):
        return setting.metadata["read"](text)
    shown = repr(text)[:200]
    if not setting.repr:  # a secret
        shown = "a text that is not shown"
    raise BadInput(
        f"use the setting {setting.name} ({variable})",
        f"its value is {shown}, and it can be {setting.metadata['allowed']}",
        f"change it, or unset {variable}; docs/settings.md lists all settings",
    )


def set_variable(name: str, value: str | None) -> None:
    """Set an environment variable of this process; None removes it."""
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value


@contextlib.contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process for the duration of the block; leave all others alone."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            set_variable(name, value)


@contextlib.contextmanager
def attributes_set(target: Any, **values: Any) -> Iterator[None]:
    """Set attributes of another project's object for the duration of the block, and put them back."""
    before = {name: vars(target)[name] for name in values if name in vars(target)}
    try:
        for name, value in values.items():
            setattr(target, name, value)
        yield
    finally:
        for name in values:
            if name in before:
                setattr(target, name, before[name])
            elif name in vars(target):
                delattr(target, name)  # its class has it
