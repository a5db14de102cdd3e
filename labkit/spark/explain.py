"""From the text of a TorchDistributor error to its cause and fix.

Spark wraps the error of a rank into that of torchrun, that into a task's, and that into a job's. Only the
text has all of them.
"""

import re

_PYTHON = re.compile(
    r"Traceback \(most recent call last\):.*?^(\w[\w.]*(?:Error|Exception)\b.*?)$", re.S | re.M
)
_SPARK = re.compile(r"\[[A-Z_.\d-]{6,}\]:? .+")

# Pattern: fix; `{0}` is the pattern's group.
_FIXES = {
    r"CONTEXT_ONLY_VALID_ON_DRIVER": (
        "write the DataFrame as Parquet first, and pass its path to the function"
    ),
    r"cannot pickle '?([\w.]+)'? object|Could not serialize object": (
        "the function uses something that cannot be pickled: create it inside the function"
    ),
    r"No module named '([\w.]+)'": (
        "from pyspark import cloudpickle; cloudpickle.register_pickle_by_value({0}) sends your own "
        "module with the function; a package must be installed on every node"
    ),
    r"GPUs were unable to be found|gpu usage is unavailable|GPU resources were not configured": (
        "TorchDistributor(…, use_gpu=False); its default is True"
    ),
    r"requires more slots than the total number of slots|SPARK-24819": (
        "lower num_processes to the number of slots, because all ranks run at the same time, or start more "
        "workers"
    ),
    r"Unable to find (?:address for|interface)|No such device": (
        "set GLOO_SOCKET_IFNAME to an interface of the machine: lo if all ranks are on this machine, "
        "otherwise that of the cluster's network (ip -br address lists them)"
    ),
    r"ProcessGroupNCCL is only supported with GPUs|no GPUs found": (
        'init_process_group("gloo"), because nccl needs GPUs'
    ),
    r"exitcode\s*: -9|Signal 9 \(SIGKILL\)": "check whether memory ran out (dmesg | tail), then launch again",
}
_RANK_LINE = re.compile(r"^\s*\[rank(\d+)\]: ?(.*)$", re.MULTILINE)
# The lines of two ranks can mix: where another traceback begins, this one has no end.
_TRACEBACK = re.compile(
    r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(?!Traceback \()\S.*$", re.MULTILINE
)
_ROOT = re.compile(r"Root Cause.*?rank\s*: (\d+)", re.DOTALL)
_KILLED = re.compile(r"rank\s*: (\d+) .*?\n\s*exitcode\s*: -(\d+)")
_SIGNALS = {"6": "SIGABRT", "9": "SIGKILL", "11": "SIGSEGV"}


def advice(text: str) -> str | None:
    """The fix for an error with this text; None if it is not a known one."""
    for pattern, fix in _FIXES.items():
        if found := re.search(pattern, text):
            return fix.format(*found.groups())
    return None


def rank_error(text: str) -> tuple[int, str] | None:
    """(rank, traceback) of the rank that failed first, according to this text; None if none did.

    torchrun puts ``[rank0]:`` before each line of a rank's traceback. A rank that was killed has no
    traceback, and the others fail because it is gone. Ranks that torchrun ended (SIGTERM) are no cause.
    """
    for rank, number in _KILLED.findall(text):
        if number != "15":
            return int(rank), f"killed ({_SIGNALS.get(number, f'signal {number}')})"
    tracebacks: dict[str, list[str]] = {}
    for rank, line in _RANK_LINE.findall(text):
        tracebacks.setdefault(rank, []).extend([line] if line.strip() else [])
    if tracebacks:
        # torchrun ends the other ranks when the first one has failed, perhaps amid their tracebacks.
        complete = [
            rank
            for rank, printed in tracebacks.items()
            if re.match(r"(?!Traceback \()\S", "".join(printed[-1:]))
        ]
        first = (complete or list(tracebacks))[0]
        return int(first), "\n".join(tracebacks[first])
    # Before there is a process group, lines have no rank, and torchrun names it at the end.
    before, ended, after = text.partition("failed (exitcode")
    found = _TRACEBACK.search(before) if ended else None
    root = _ROOT.search(after)
    return (int(root[1]) if root else 0, found[0]) if found else None


def summary(text: str) -> str:
    """The message of a Spark error in one line, without Java's stack trace."""
    found = _PYTHON.search(text)
    line = found[1] if found else (spark[0] if (spark := _SPARK.search(text)) else text.strip())
    return line.partition("\n")[0][:300]
