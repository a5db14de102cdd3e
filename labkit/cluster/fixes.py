"""Fixes for what engines say: one table for Ray Train, Tune and Data."""

import os
import re
from pathlib import Path

from labkit.errors import BadInput

# Pattern in the text of an error: its fix, in which {0} is the pattern's group.
_FIXES = {
    r"No module named '(\w+)": (
        "if {0} is a package, install it on the cluster's nodes. A module of your own goes with the function "
        "after ray.cloudpickle.register_pickle_by_value({0}). On a cluster of your own, name its folder: "
        "lab.stop(), then cluster.connect(ADDRESS, runtime_env={{'working_dir': '.'}})"
    ),
    r"(?m)FileNotFoundError: (?:\[Errno 2\] No such file or directory: ')?([^/'\s\[][^'\s]*)'?$": (
        "the whole path, os.path.abspath({0!r}), because workers have folders of their own; for an object of "
        "a store, filesystem=… or s3://{0}"
    ),
    r"have (?:NCCL|MPI|UCC|XCCL|\w+) built in|ProcessGroupNCCL is only supported with GPUs": (
        'TorchConfig(backend="gloo"), or leave torch_config out: Ray then uses nccl with use_gpu=True and '
        "gloo without"
    ),
    r"default process group twice": (
        "leave init_process_group() out of the loop: TorchTrainer has called it before the loop begins"
    ),
    r"not compiled with CUDA|Found no NVIDIA driver|No CUDA GPUs are available": (
        'ray.train.torch.get_device() in place of "cuda": it is the CPU where a worker has no GPU'
    ),
    r"Unable to serialize unknown type: <class '([\w.]+)'>": (
        "report Python's own numbers: float(value) for each {0} in ray.train.report"
    ),
    r"URI has empty scheme: '([^']+)'": (
        "the whole path, os.path.abspath({0!r}), a URI such as s3://BUCKET/{0}, or filesystem=… that has it"
    ),
    r"Unrecognized filesystem type in URI: (\S+)|datasource returned `filesystem=None`": (
        "a URI that pyarrow knows (file, s3, gs, hdfs), or filesystem=… and a path in it"
    ),
    r"Cannot create directory '([^']+)'": (
        "a folder in which every node can write, in place of {0}: RunConfig(storage_path=…)"
    ),
    r"'\w+' object has no attribute 'searcher'": (
        "HyperBandForBOHB works with search_alg=TuneBOHB() only; HyperBandScheduler works with all others"
    ),
    r"running low on memory": (
        "use smaller batches or fewer processes at a time, or reserve memory for each, {{'memory': BYTES}} "
        "among its resources: then Ray starts no more of them than fit"
    ),
    r"Caught unexpected exception: Failed to deserialize": (
        "raise RuntimeError(str(error)) from None where it is raised: an exception that can't be unpickled "
        "ends the whole sweep"
    ),
    r"(runtime_env\['\w+'\]|Invalid option keyword \S+)": "correct {0}, as the line above says",
}


def known_fix(text: str) -> str | None:
    """Return the fix for the first pattern of the table that `text` has, None if it has none."""
    for pattern, fix in _FIXES.items():
        match = re.search(pattern, text)
        if match:
            return fix.format(*match.groups())
    return None


def check_storage_path(path: object, *, filesystem: object, attempt: str) -> None:
    """Refuse a relative `storage_path`: each process of a run has a working folder of its own.

    Raises:
        LabError: it is relative, and not inside a filesystem of its own.
    """
    text = str(path or "")
    if not text or filesystem is not None or "://" in text or Path(text).expanduser().is_absolute():
        return
    fact = f"storage_path={text!r} is a relative path, and Ray takes only whole paths and URIs"
    raise BadInput(attempt, fact, f"RunConfig(storage_path={os.path.abspath(text)!r}, …)")
