"""The server without keys: anyone on this machine can read it, nothing can be written, and it ends."""

import pyarrow as pa
import pytest
from pyarrow.fs import FileSelector, S3FileSystem

from labkit import storage
from labkit.system import family


def test_it_is_read_without_keys_and_not_written(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    public = storage.start_public({"open-data/numbers.parquet": pa.table({"n": [1, 2, 3]})})
    try:
        files = S3FileSystem(endpoint_override=public.endpoint, anonymous=True)
        assert [one.base_name for one in files.get_file_info(FileSelector("open-data"))] == [
            "numbers.parquet"
        ]
        with pytest.raises(OSError):
            files.delete_file("open-data/numbers.parquet")
        assert (public.folder / "open-data/numbers.parquet").exists()
    finally:
        public.stop()
    assert not [one for one in family.running(tmp_path) if one.group != "supervisor"]
    assert not public.folder.exists()
