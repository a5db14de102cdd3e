"""Rendered digits in files: the right ones, all of them or none, in bounded memory."""

import os
import shutil
import subprocess
import sys
import tracemalloc

import numpy as np
import pyarrow.parquet as pq
import pytest

from labkit.datasets import shards
from labkit.datasets.images import read_parquet
from labkit.datasets.rendering import render
from labkit.datasets.shards import rendered_to_parquet
from labkit.errors import DatasetError


def read(files):
    parts = [read_parquet(path, name="x", split="train", classes=tuple("0123456789")) for path in files]
    return np.concatenate([p.images for p in parts]), np.concatenate([p.labels for p in parts])


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "many"


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_files_hold_the_digits_in_order(folder, threads):
    files = rendered_to_parquet(folder, 25_000, 3, split="test", rows_per_file=10_000, threads=threads)
    assert [path.name for path in files] == [f"part-0000{i}.parquet" for i in range(3)]
    assert [pq.read_metadata(path).num_rows for path in files] == [10_000, 10_000, 5_000]
    images, labels = read(files)
    expected = render(0, 25_000, seed=3, split="test")
    assert np.array_equal(images, expected[0])
    assert np.array_equal(labels, expected[1])
    assert os.listdir(folder.parent) == ["many"]


def test_a_file_has_row_groups_of_bounded_size(folder):
    (path,) = rendered_to_parquet(folder, 20_000)
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [8192, 8192, 3616]


def test_made_again_it_is_found_again(folder):
    rendered_to_parquet(folder, 3000, rows_per_file=1000)
    times = [path.stat().st_mtime_ns for path in sorted(folder.iterdir())]
    assert len(rendered_to_parquet(str(folder), 3000, rows_per_file=1000)) == 3
    assert [path.stat().st_mtime_ns for path in sorted(folder.iterdir())] == times


@pytest.mark.parametrize(
    "other",
    [{"n": 3001}, {"seed": 1}, {"split": "test"}, {"rows_per_file": 1500}],
    ids=lambda other: next(iter(other)),
)
def test_a_folder_with_other_digits_is_kept(folder, other):
    request = {"n": 3000, "seed": 0, "split": "train", "rows_per_file": 1000}
    rendered_to_parquet(folder, **request)
    before = content(folder)
    with pytest.raises(DatasetError, match="something else"):
        rendered_to_parquet(folder, **request | other)
    assert content(folder) == before


def test_a_folder_that_lost_a_file_or_a_part_of_one_is_not_taken_for_whole(folder):
    files = rendered_to_parquet(folder, 3000, rows_per_file=1000)
    whole = files[1].read_bytes()
    files[1].write_bytes(whole[:-100])
    with pytest.raises(DatasetError, match="not all of it"):
        rendered_to_parquet(folder, 3000, rows_per_file=1000)
    files[1].unlink()
    with pytest.raises(DatasetError, match="not all of it"):
        rendered_to_parquet(folder, 3000, rows_per_file=1000)


def test_a_persons_folder_is_kept(folder):
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(DatasetError, match="something else"):
        rendered_to_parquet(folder, 100)
    assert content(folder) == {"thesis.txt": b"years of work"}
    folder.joinpath("thesis.txt").unlink()
    assert len(rendered_to_parquet(folder, 100)) == 1  # an empty one is free to use


def test_a_file_in_the_place_of_the_folder(folder):
    folder.write_text("a file")
    with pytest.raises(DatasetError, match="something else"):
        rendered_to_parquet(folder, 100)
    with pytest.raises(DatasetError, match="File exists|Not a directory"):
        rendered_to_parquet(folder / "below", 100)


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_what_fails_half_way_leaves_nothing(folder, monkeypatch, failure):
    calls = []

    def fail(*part, **options):
        calls.append(part)
        if len(calls) == 3:
            raise failure
        return render(*part, **options)

    monkeypatch.setattr(shards.rendering, "render", fail)
    with pytest.raises(KeyboardInterrupt if failure is KeyboardInterrupt else DatasetError):
        rendered_to_parquet(folder, 600_000, rows_per_file=300_000, threads=2)
    assert os.listdir(folder.parent) == []
    assert len(calls) < 20  # of 74: the other file was not written to its end


def test_too_many_for_the_disk_are_refused_at_once(folder):
    with pytest.raises(DatasetError, match="are free"):
        rendered_to_parquet(folder, 10**13)
    assert os.listdir(folder.parent) == []


@pytest.mark.parametrize(("n", "rows_per_file"), [(0, 10), (10, 0), (10, -1)])
def test_numbers_that_make_no_sense(folder, n, rows_per_file):
    with pytest.raises(DatasetError):
        rendered_to_parquet(folder, n, rows_per_file=rows_per_file)


def test_memory_does_not_grow_with_the_number(tmp_path):
    def peak(n):
        tracemalloc.start()
        try:
            rendered_to_parquet(tmp_path / str(n), n, rows_per_file=16_384, threads=2)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    render(0, 1)  # the glyphs stay
    assert peak(100_000) < 40e6  # two parts of 6 MB and what it takes to draw them; the images are 78 MB


def test_leftovers_of_a_killed_process_go_and_those_of_a_living_one_stay(folder):
    rendered_to_parquet(folder, 10)
    shutil.rmtree(folder)
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    here = f".many.{shards.platform.node()}"
    for name in (f"{here}-{process.pid}-1", f"{here}-{os.getpid()}-1", f"{here}-x-1", ".many.elsewhere-1-1"):
        (folder.parent / name).mkdir()
    rendered_to_parquet(folder, 10)
    left = {path.name for path in folder.parent.iterdir()}
    assert left == {"many", f"{here}-{os.getpid()}-1", f"{here}-x-1", ".many.elsewhere-1-1"}


def test_processes_at_once_make_one_good_folder(folder):
    code = (
        "import sys; from labkit.datasets.shards import rendered_to_parquet\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        f"print(len(rendered_to_parquet({str(folder)!r}, 20_000, rows_per_file=5000)))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60)[0].splitlines()[-1] for process in processes]
    assert answers == ["4"] * 3
    assert os.listdir(folder.parent) == ["many"]
    assert np.array_equal(read(sorted(folder.iterdir()))[0], render(0, 20_000)[0])
