"""The file with the keys of an object store: a *shared credentials file* of AWS that only its owner reads."""

import configparser
import contextlib
import shlex
from pathlib import Path

from labkit.errors import Damaged
from labkit.files import private_file

PROFILE = "labkit"  # in the file


def write_keys(path: Path, access: str, secret: str) -> None:
    """Write keys to a file that only its owner can read, unless it exists."""
    private_file(path, f"[{PROFILE}]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n")


def read_keys(path: Path) -> tuple[str, str]:
    """Return (access key, secret key) of a file that `write_keys` has written."""
    parser = configparser.RawConfigParser()
    keys = ("", "")
    with contextlib.suppress(configparser.Error, KeyError, ValueError):  # a message may have a key in it
        parser.read(path, encoding="utf-8")
        keys = parser[PROFILE]["aws_access_key_id"], parser[PROFILE]["aws_secret_access_key"]
    if not all(keys):
        fix = f"rm {shlex.quote(str(path))}: the lab makes new keys"
        raise Damaged(f"read the keys in {path}", "it is damaged", fix)
    return keys


def folder_of(keys: Path) -> Path | None:
    """Return the folder with the objects of the server that has this file of keys, if it is the lab's."""
    folder = keys.parent / "rclone"
    return folder if (keys.parent / "serving").is_file() else None
