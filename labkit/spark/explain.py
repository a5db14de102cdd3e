"""What TorchDistributor's errors mean, and the cure of each: from the text of an exception to a fix.

Spark wraps the text of a rank's error into that of torchrun, that into a task's, and that into a job's. So
all is told by the words in it.
"""

import re

_PYTHON = re.compile(
    r"Traceback \(most recent call last\):.*?^(\w[\w.]*(?:Error|Exception)\b.*?)$", re.S | re.M
)
_SPARK = re.compile(r"\[[A-Z_.\d-]{6,}\]:? .+")

# What the text has in it, and the cure; `{0}` is what the pattern's group found.
_CURES = (
    (
        r"CONTEXT_ONLY_VALID_ON_DRIVER",
        "write the DataFrame as Parquet before, and give the function its path",
    ),
    (
        r"cannot pickle '?([\w.]+)'? object|Could not serialize object",
        "the function takes along something that cannot travel: make that inside of the function",
    ),
    (
        r"No module named '([\w.]+)'",
        "from pyspark import cloudpickle; cloudpickle.register_pickle_by_value({0}) sends a module of yours "
        "along with the function; a package has to be installed on every node",
    ),
    (
        r"GPUs were unable to be found|gpu usage is unavailable|GPU resources were not configured",
        "TorchDistributor(…, use_gpu=False); its default is True",
    ),
    (
        r"requires more slots than the total number of slots|SPARK-24819",
        "num_processes up to the number of slots: all ranks have to run at the same time; or more workers",
    ),
    (
        r"Unable to find (?:address for|interface).*?: ?(\S+)|No such device.*?(\S*)",
        "GLOO_SOCKET_IFNAME has to name an interface that the machine has: lo if all ranks are on this "
        "machine, else the one of the cluster's network (ip -br address lists them)",
    ),
    (
        r"ProcessGroupNCCL is only supported with GPUs|no GPUs found",
        'init_process_group("gloo"): nccl is for GPUs',
    ),
    (
        r"exitcode\s*: -9|Signal 9 \(SIGKILL\)",
        "look for memory that ran out (dmesg | tail), then launch again",
    ),
)
_RANK_LINE = re.compile(r"^\s*\[rank(\d+)\]: ?(.*)$", re.MULTILINE)
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*\S.*$", re.MULTILINE)
_ROOT = re.compile(r"Root Cause.*?rank\s*: (\d+)", re.DOTALL)
_KILLED = re.compile(r"rank\s*: (\d+) .*?\n\s*exitcode\s*: -(\d+)")
_SIGNALS = {"6": "SIGABRT", "7": "SIGBUS", "9": "SIGKILL", "11": "SIGSEGV"}


def advice(text: str) -> str | None:
    """The cure for the error with this text; None if it is not one of those that TorchDistributor makes."""
    for pattern, cure in _CURES:
        if found := re.search(pattern, text):
            return cure.format(*(group or "" for group in found.groups()))
    return None


def rank_error(text: str) -> tuple[int, str] | None:
    """(rank, traceback) of the first rank whose end is told in this text; None if there is none.

    torchrun puts ``[rank0]:`` before each line of a rank's traceback. One that was killed leaves none, and
    the others mostly fail because it is gone; those that torchrun itself ended (SIGTERM) are no cause.
    """
    for rank, number in _KILLED.findall(text):
        if number != "15":
            return int(rank), f"killed ({_SIGNALS.get(number, f'signal {number}')})"
    lines = _RANK_LINE.findall(text)
    if not lines:
        return _before_they_met(text)
    first = lines[0][0]
    return int(first), "\n".join(line for rank, line in lines if rank == first)


def _before_they_met(text: str) -> tuple[int, str] | None:
    """Before there is a process group no line has a rank before it; torchrun says at the end whose it was."""
    before, ended, after = text.partition("failed (exitcode")
    found = _TRACEBACK.search(before) if ended else None
    root = _ROOT.search(after)
    return (int(root[1]) if root else 0, found[0]) if found else None


def summary(text: str) -> str:
    """What the text of an error of Spark's says, in one line, without the Java around it."""
    found = _PYTHON.search(text)
    line = found[1] if found else (spark[0] if (spark := _SPARK.search(text)) else text.strip())
    return line.partition("\n")[0][:300]
