"""Fixes for what engines say, and whether a panel shows a line of the reader's own."""

import os

import pytest

from labkit.cluster.fixes import check_storage_path, known_fix
from labkit.display import tracebacks
from labkit.errors import LabError

FIXES = [
    ("ModuleNotFoundError: No module named 'polars'", "if polars is a package, install it"),
    ("No module named 'mine.models'", "register_pickle_by_value(mine)"),
    ("RuntimeError: Distributed package doesn't have NCCL built in", 'TorchConfig(backend="gloo")'),
    ("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", 'backend="gloo"'),
    ("ValueError: trying to initialize the default process group twice!", "leave init_process_group() out"),
    ("AssertionError: Torch not compiled with CUDA enabled", "ray.train.torch.get_device()"),
    ("Unable to serialize unknown type: <class 'numpy.float32'>", "float(value) for each numpy.float32"),
    ("pyarrow.lib.ArrowInvalid: URI has empty scheme: 'runs'", "os.path.abspath('runs')"),
    ("ArrowInvalid: Unrecognized filesystem type in URI: s4://b/runs", "a URI that pyarrow knows"),
    ("FileNotFoundError: bucket/x.parquet", "filesystem=… or s3://bucket/x.parquet"),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'films.csv'", "abspath('films.csv')"),
    ("FileNotFoundError: [Errno 2] Cannot create directory '/proc/x'. Detail: …", "in place of /proc/x"),
    ("'BasicVariantGenerator' object has no attribute 'searcher'", "search_alg=TuneBOHB()"),
    ("runtime_env['pip'] must be of type str", "correct runtime_env['pip']"),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/data/films.csv'", "nothing"),
    ("1 worker(s) were killed due to the node running low on memory. …", "{'memory': BYTES}"),
    ("Caught unexpected exception: Failed to deserialize exception. …", "raise RuntimeError(str(error))"),
    ("ValueError: the loss is not a number", "nothing"),
]


@pytest.mark.parametrize("text, fix", FIXES)
def test_a_fact_with_a_known_fix_gets_it(text, fix):
    assert fix in (known_fix(text) or "nothing")


@pytest.mark.parametrize("path", ["runs", "./runs", "../runs", "a/b"])
def test_a_relative_storage_path_is_refused_with_the_whole_one(path):
    with pytest.raises(LabError, match="relative path") as refused:
        check_storage_path(path, filesystem=None, attempt="follow a run")
    assert refused.value.fix == f"RunConfig(storage_path={os.path.abspath(path)!r}, …)"


@pytest.mark.parametrize("path", [None, "", "/runs", "~/runs", "s3://bucket/runs", "file:///runs"])
def test_a_whole_one_is_not(path):
    check_storage_path(path, filesystem=None, attempt="follow a run")
    check_storage_path("bucket/runs", filesystem=object(), attempt="follow a run")


def test_which_tracebacks_show_a_line_of_the_reader():
    head = "Traceback (most recent call last):\n"
    own = '  File "/home/me/train.py", line 3, in loop\n    fail()\n'
    of_torch = '  File "/venv/lib/python3.11/site-packages/torch/x.py", line 9, in f\n    raise\n'
    compiled = '  File "pyarrow/_fs.pyx", line 457, in pyarrow._fs.FileSystem.create\n'
    assert tracebacks.shows_own(f"{head}{own}{of_torch}ValueError: no")
    assert not tracebacks.shows_own(f"{head}{of_torch}{compiled}ValueError: no")
    assert not tracebacks.shows_own("ModuleNotFoundError: No module named 'polars'")
