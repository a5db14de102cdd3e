import pickle
import subprocess
import sys

import pyarrow.fs
import pytest

from labkit.tune import whole_files


@pytest.fixture
def files():
    return whole_files.filesystem()


def listed(filesystem, folder):
    found = filesystem.get_file_info(pyarrow.fs.FileSelector(str(folder), recursive=True))
    return sorted(info.base_name for info in found)


def test_a_file_has_its_name_when_it_is_closed(files, tmp_path):
    path = tmp_path / "state.json"
    path.write_text("old")
    with files.open_output_stream(str(path)) as file:
        file.write(b"n")
        file.flush()
        assert path.read_text() == "old"
        assert listed(files, tmp_path) == ["state.json"]  # the other name is nobody's
        file.write(b"ew")
    assert path.read_text() == "new"
    assert [one.name for one in tmp_path.iterdir()] == ["state.json"]


def test_a_process_that_is_killed_leaves_the_older_file(files, tmp_path):
    path = tmp_path / "state.json"
    path.write_text("old")
    code = (
        "import os, signal, sys; from labkit.tune import whole_files\n"
        "file = whole_files.filesystem().open_output_stream(sys.argv[1])\n"
        "file.write(b'x' * 10**6); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -9
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2 and listed(files, tmp_path) == ["state.json"]


def test_a_full_disk_leaves_the_older_file(tmp_path):
    path = tmp_path / "state.json"
    path.write_text("old")
    file = whole_files._WholeFile(str(path))

    class Full:
        closed = False

        def write(self, data):
            raise OSError(28, "No space left on device")

        def close(self):
            self.closed = True

    file._file.close()
    file._file = Full()
    with pytest.raises(OSError, match="No space"):
        file.write(b"new")
    file.close()
    assert path.read_text() == "old" and [one.name for one in tmp_path.iterdir()] == ["state.json"]


def test_what_tune_does_with_it(files, tmp_path):
    """Copy a folder into it and out of it, remove files and folders, travel to another process."""
    source = tmp_path / "source"
    (source / "trial").mkdir(parents=True)
    (source / "trial" / "result.json").write_bytes(b"x" * 3_000_000)
    (source / "state.json").write_text("{}")
    for _ in range(2):
        files.create_dir(str(tmp_path / "runs"))
        pyarrow.fs.copy_files(str(source), str(tmp_path / "runs"), destination_filesystem=files)
    assert listed(files, tmp_path / "runs") == ["result.json", "state.json", "trial"]
    pyarrow.fs.copy_files(str(tmp_path / "runs"), str(tmp_path / "back"), source_filesystem=files)
    assert (tmp_path / "back" / "trial" / "result.json").stat().st_size == 3_000_000
    files.copy_file(str(source / "state.json"), str(tmp_path / "runs" / "copy"))
    files.move(str(tmp_path / "runs" / "copy"), str(tmp_path / "runs" / "moved"))
    assert files.get_file_info(str(tmp_path / "runs" / "moved")).size == 2
    files.delete_file(str(tmp_path / "runs" / "moved"))
    files.delete_dir(str(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()
    again = pickle.loads(pickle.dumps(files))
    assert again == files and again != pyarrow.fs.LocalFileSystem()
    assert files.open_input_stream(str(source / "state.json")).read() == b"{}"


def test_a_folder_that_is_not_there(files, tmp_path):
    with pytest.raises(FileNotFoundError):
        files.open_output_stream(str(tmp_path / "nowhere" / "file"))
    with pytest.raises(FileNotFoundError):
        files.copy_file(str(tmp_path / "nothing"), str(tmp_path / "copy"))
    assert list(tmp_path.iterdir()) == []
