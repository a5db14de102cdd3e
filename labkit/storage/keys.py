"""Keys of an object store: in a file that its owner alone can read, and in no pickle, log or command line.

What travels to a worker is a `KeyRing`: the path of that file. A worker on this machine reads it there; on
another one it takes the keys that its own environment names.
"""

import contextlib
import functools
import json
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from labkit.errors import StorageDenied, StorageError


@dataclass(frozen=True, kw_only=True)
class Keys:
    """An access key and its secret. Its repr shows neither.

    Attributes:
        access, secret: None for both: botocore's own chain finds them (AWS_… variables, ~/.aws, a role).
    """

    access: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)

    @classmethod
    def random(cls) -> "Keys":
        return cls(access=f"LAB{secrets.token_hex(8).upper()}", secret=secrets.token_hex(20))


@dataclass(frozen=True)
class KeyRing:
    """Where the keys of a store are found; holds no secret, so that it may be pickled and printed.

    Attributes:
        path: a JSON file of mode 0600.
    """

    path: str

    def make(self, keys: Keys) -> Keys:
        """Write `keys` if there are none yet; returns those that are there.

        Raises:
            StorageError: the folder cannot be written.
        """
        path = Path(self.path)
        private = functools.partial(os.open, mode=0o600)
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(partial, "w", opener=private) as file:
                json.dump({"access": keys.access, "secret": keys.secret}, file)
            try:
                with contextlib.suppress(FileExistsError):
                    os.link(partial, path)  # whole or not at all, and never over another's
            finally:
                partial.unlink()
        except OSError as error:
            fix = "make that folder writable, or point LABKIT_HOME at one that is"
            raise StorageError(
                f"keep the store's keys in {path}", error.strerror or str(error), fix
            ) from None
        return self.read()

    def read(self, env: Mapping[str, str] | None = None) -> Keys:
        """The keys in the file; without one, those of the environment (``LABKIT_S3_…``, then AWS's own).

        Raises:
            StorageDenied: others could have read the file, or it is none of ours.
        """
        attempt = "read the store's keys"
        try:
            with open(self.path) as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                content = json.load(file)
            keys = Keys(access=content["access"], secret=content["secret"])
        except FileNotFoundError:
            return _from(os.environ if env is None else env)
        except PermissionError:
            fact = f"{self.path} belongs to another user"
            raise StorageDenied(attempt, fact, "run the cluster as the user who runs the notebook") from None
        except (OSError, ValueError, KeyError, TypeError):
            fact = f"{self.path} is damaged"
            raise StorageDenied(attempt, fact, f"rm {self.path}, and start the store again") from None
        if mode & 0o077:
            fact = f"others on this machine can read {self.path} (mode {mode:04o})"
            raise StorageDenied(
                attempt, fact, f"rm {self.path}, and start the store again: it makes new keys"
            )
        return keys

    def forget(self) -> None:
        """Remove the file."""
        Path(self.path).unlink(missing_ok=True)


def _from(env: Mapping[str, str]) -> Keys:
    access, secret = env.get("LABKIT_S3_ACCESS_KEY"), env.get("LABKIT_S3_SECRET_KEY")
    return Keys(access=access, secret=secret) if access and secret else Keys()
