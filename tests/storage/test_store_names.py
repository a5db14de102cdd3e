"""Names as people give them: each can be written, read, listed, copied, moved and deleted."""

import pytest
from pyarrow.fs import FileSelector, FileType

import object_servers
from labkit.errors import LabError
from labkit.storage import check_run_name

NAMES = ["lr=0.1", " a", "größe 🚀", "50%25", "a+b&c=d", "#1", "a\\b'\"", "a?b", "*", "**", "a[b]", "[!a]"]
NAMES += ["a?versionId=3"]


@pytest.fixture(scope="module", params=object_servers.KINDS)
def store(request, tmp_path_factory):
    with object_servers.start(request.param, tmp_path_factory.mktemp("home")) as store:
        yield store


@pytest.fixture
def neighbours(store):
    """Objects that the names match as patterns."""
    kept = [f"lab/t/{name}/d/f" for name in ("axb", "ab", "b", "abc")]
    store.files.pipe(dict.fromkeys(kept, b"kept"))
    yield sorted(kept)
    store.files.rm("lab", recursive=True)
    store.bucket("lab")


@pytest.mark.parametrize("name", NAMES)
def test_through_pyarrows_file_system(store, neighbours, name):
    fs, place = store.filesystem, f"lab/t/{name}"
    with fs.open_output_stream(f"{place}/d/f") as stream:
        stream.write(b"1")
    assert fs.open_input_stream(f"{place}/d/f").read() == b"1"
    assert fs.get_file_info(place).type == FileType.Directory
    assert fs.get_file_info(f"{place}/d/f").size == 1
    listed = [one.path for one in fs.get_file_info(FileSelector(place, recursive=True))]
    assert listed == [f"{place}/d", f"{place}/d/f"]
    assert place in [one.path for one in fs.get_file_info(FileSelector("lab/t"))]
    fs.copy_file(f"{place}/d/f", f"{place}/e/g{name}")
    fs.move(f"{place}/e", f"{place}/h")
    assert store.files.find(place) == sorted([f"{place}/d/f", f"{place}/h/g{name}"])
    fs.move(f"{place}/h/g{name}", f"{place}/i{name}")
    fs.delete_file(f"{place}/i{name}")
    assert store.files.find(place) == [f"{place}/d/f"]
    fs.delete_dir_contents(place)
    assert store.files.find("lab/t") == neighbours
    store.files.pipe_file(f"{place}/f", b"1")
    fs.delete_dir(place)
    assert store.files.find("lab/t") == neighbours


@pytest.mark.parametrize("name", ["a?b", "**"])
def test_through_fsspec(store, neighbours, name, tmp_path):
    files, place = store.files, f"lab/t/{name}"
    files.pipe_file(f"{place}/f", b"1")
    assert files.exists(place) and files.isdir(place) and files.cat(f"{place}/f") == b"1"
    files.get(place, str(tmp_path / "got"), recursive=True)
    files.get(f"{place}/f", str(tmp_path / "one"))
    assert (tmp_path / "one").read_text() == (tmp_path / "got" / "f").read_text() == "1"
    files.copy(place, f"{place}2", recursive=True)
    files.copy(place, f"{place}2", recursive=True)  # as `cp`: into a folder that exists
    files.rm(place, recursive=True)
    assert files.find(f"{place}2") == [f"{place}2/{name}/f", f"{place}2/f"]
    files.rm(files.find(f"{place}2"))
    assert files.find("lab/t") == neighbours
    assert files.glob("lab/t/a?b/d/*") == ["lab/t/axb/d/f"]  # here a pattern is one
    with pytest.raises(FileNotFoundError):
        files.copy("lab/t/none", place, recursive=True)


@pytest.mark.parametrize("path", ["lab/t/../x", "s3://lab//x"])
def test_parts_that_http_takes_away_are_refused_at_once(store, path):
    with pytest.raises(LabError, match='empty, "." or ".."') as raised:
        store.files.pipe_file(path, b"1")
    store.files.exists(raised.value.fix.strip("'"))
    assert store.files.exists("s3://lab/") and store.files.exists("/lab/")


# -- names of runs -----------------------------------------------------------------------------------


def test_a_name_that_works():
    for name in ("03-torch", "exp/lr=0.1 [a] 50%? *", "x" * 255, "..."):
        check_run_name(name)
    check_run_name("größe", only_ascii=False)  # Ray Tune


@pytest.mark.parametrize("name", ["größe", 3, "日本", "lr\n3", "../up", "a//b", "", "x" * 256, "ab/" * 301])
def test_a_name_that_would_fail_after_the_start(name):
    with pytest.raises(LabError, match="ASCII.*255 bytes") as raised:
        check_run_name(name)
    check_run_name(raised.value.fix.removeprefix("RunConfig(name='").removesuffix("')"))
