"""A second S3 server on this machine that needs no keys and can only be read, like a public bucket.

    public = start_public({"open-data/digits.parquet": table})
    S3FileSystem(endpoint_override=public.endpoint, anonymous=True)
    public.stop()

It is ``rclone serve s3 --read-only`` on 127.0.0.1. It serves a folder of its own: every user of this machine
can read what is in it, so the lab's store is not.
"""

import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from labkit import machine
from labkit.errors import LabError
from labkit.settings import Settings
from labkit.system import supervision

if TYPE_CHECKING:
    import pyarrow as pa

_ATTEMPT = "start a public object server"


@dataclass(frozen=True)
class PublicStore:
    """A running server; `endpoint` is its URL."""

    endpoint: str
    folder: Path
    home: Path
    group: str

    def stop(self) -> None:
        """Stop it, and delete what it served."""
        supervision.stop(self.home, self.group)
        shutil.rmtree(self.folder, ignore_errors=True)


def start_public(tables: Mapping[str, "pa.Table"], settings: Settings | None = None) -> PublicStore:
    """Serve tables as Parquet objects ``bucket/key``. It ends with this process at the latest.

    Raises:
        LabError: rclone is not installed, or it does not start.
    """
    import pyarrow.parquet

    from labkit.storage.server import serve  # which loads s3fs

    if (program := machine.rclone()) is None:
        raise LabError(_ATTEMPT, "rclone is not installed", "make setup")
    home, group = Settings.given(settings).make_home(), f"public-{secrets.token_hex(4)}"
    folder, log, port = home / "objects" / group, home / "objects" / "public.log", machine.free_port()
    public = PublicStore(f"http://127.0.0.1:{port}", folder, home, group)
    for name, table in tables.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(table, folder / name)
    command = [program, "serve", "s3", "--read-only", str(folder)]
    if not serve(command, port, log, home=home, group=group, keep=1):
        public.stop()
        raise LabError(_ATTEMPT, "it does not listen", f"its log is {log}")
    return public
