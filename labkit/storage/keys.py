"""The keys of a store, in a file that only its owner can read and that AWS's own tools understand.

It is a *shared credentials file* with one profile. botocore reads it itself, in the kernel and in every
worker on this machine, so what is pickled is the path of the file and the name of the profile, and no secret.
"""

import configparser
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import StorageError
from labkit.files import private_file

_ACCESS, _SECRET = "aws_access_key_id", "aws_secret_access_key"


@dataclass(frozen=True)
class KeyFile:
    """Where the keys of a store are. It holds no secret, so it may be pickled and printed.

    Attributes:
        path: the file, of mode 0600; "" if there is none, and botocore finds keys by itself.
        profile: the profile in it. New keys get a new name, so that a client of the old ones is not reused.
    """

    path: str = ""
    profile: str = ""

    @classmethod
    def create(cls, path: Path, access: str, secret: str) -> "KeyFile":
        """Write the keys to `path`, unless there are some already, and return what is there.

        Raises:
            StorageError: the folder cannot be written to.
        """
        profile = f"labkit-{secrets.token_hex(4)}"
        try:
            private_file(path, f"[{profile}]\n{_ACCESS} = {access}\n{_SECRET} = {secret}\n")
        except OSError as error:
            fix = "make that folder writable, or point LABKIT_HOME at one that is"
            attempt = f"keep the store's keys in {path}"
            raise StorageError(attempt, error.strerror or str(error), fix) from None
        (profile,) = _read(path)
        return cls(str(path), profile)

    def read(self) -> tuple[str, str]:
        """Return (access key, secret key).

        Raises:
            StorageError: others can read the file, or it is damaged.
        """
        (keys,) = _read(Path(self.path)).values()
        return keys

    def delete(self) -> None:
        """Remove the file."""
        if self.path:
            Path(self.path).unlink(missing_ok=True)


def _read(path: Path) -> dict[str, tuple[str, str]]:
    """The one profile of the file, and its keys."""
    attempt, fix = "read the store's keys", f"rm {path}, and start the store again: it makes new keys"
    parser = configparser.RawConfigParser()
    try:
        with path.open() as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            parser.read_file(file)
        (profile,) = parser.sections()
        keys = parser[profile][_ACCESS], parser[profile][_SECRET]
    except (OSError, configparser.Error, ValueError, KeyError):
        raise StorageError(attempt, f"{path} is damaged, or belongs to another user", fix) from None
    if mode & 0o077:
        raise StorageError(attempt, f"others on this machine can read {path} (mode {mode:04o})", fix)
    return {profile: keys}
