"""From the text of a TorchDistributor error to its cause and fix.

Spark wraps the error of a rank into that of torchrun, that into a task's, and that into a job's. Only the
text has all of them.
"""

import re

_PYTHON = re.compile(
    r"Traceback \(most recent call last\):.*?^(\w[\w.]*(?:Error|Exception)\b.*?)$", re.S | re.M
)
_SPARK = re.compile(r"\[[A-Z_.\d-]{6,}\]:? .+")

# (pattern, fix); `{0}` is the pattern's group.
_FIXES = (
    (
        r"CONTEXT_ONLY_VALID_ON_DRIVER",
        "write the DataFrame as Parquet first, and pass its path to the function",
    ),
    (
        r"cannot pickle '?([\w.]+)'? object|Could not serialize object",
        "the function uses something that cannot be pickled: create it inside the function",
    ),
    (
        r"No module named '([\w.]+)'",
        "from pyspark import cloudpickle; cloudpickle.register_pickle_by_value({0}) sends your own "
        "module with the function; a package must be installed on every node",
    ),
    (
        r"GPUs were unable to be found|gpu usage is unavailable|GPU resources were not configured",
        "TorchDistributor(…, use_gpu=False); its default is True",
    ),
    (
        r"requires more slots than the total number of slots|SPARK-24819",
        "lower num_processes to the number of slots, because all ranks run at the same time, or start more "
        "workers",
    ),
    (
        r"Unable to find (?:address for|interface).*?: ?(\S+)|No such device.*?(\S*)",
        "set GLOO_SOCKET_IFNAME to an interface of the machine: lo if all ranks are on this machine, "
        "otherwise that of the cluster's network (ip -br address lists them)",
    ),
    (
        r"ProcessGroupNCCL is only supported with GPUs|no GPUs found",
        'init_process_group("gloo"), because nccl needs GPUs',
    ),
    (
        r"exitcode\s*: -9|Signal 9 \(SIGKILL\)",
        "check whether memory ran out (dmesg | tail), then launch again",
    ),
)
_RANK_LINE = re.compile(r"^\s*\[rank(\d+)\]: ?(.*)$", re.MULTILINE)
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*\S.*$", re.MULTILINE)
_ROOT = re.compile(r"Root Cause.*?rank\s*: (\d+)", re.DOTALL)
_KILLED = re.compile(r"rank\s*: (\d+) .*?\n\s*exitcode\s*: -(\d+)")
_SIGNALS = {"6": "SIGABRT", "7": "SIGBUS", "9": "SIGKILL", "11": "SIGSEGV"}


def advice(text: str) -> str | None:
    """The fix for an error with this text; None if it is not a known one."""
    for pattern, fix in _FIXES:
        if found := re.search(pattern, text):
            return fix.format(*(group or "" for group in found.groups()))
    return None


def rank_error(text: str) -> tuple[int, str] | None:
    """(rank, traceback) of the rank that failed first, according to this text; None if none did.

    torchrun puts ``[rank0]:`` before each line of a rank's traceback. A rank that was killed has no
    traceback, and the others fail because it is gone. Ranks that torchrun ended (SIGTERM) are no cause.
    """
    for rank, number in _KILLED.findall(text):
        if number != "15":
            return int(rank), f"killed ({_SIGNALS.get(number, f'signal {number}')})"
    lines = _RANK_LINE.findall(text)
    if not lines:
        return _before_they_met(text)
    tracebacks: dict[str, list[str]] = {}
    for rank, line in lines:
        tracebacks.setdefault(rank, []).append(line)
    # torchrun ends the other ranks when the first one has failed, perhaps in the middle of their tracebacks.
    complete = [rank for rank, printed in tracebacks.items() if _names_an_error(printed)]
    first = (complete or list(tracebacks))[0]
    return int(first), "\n".join(tracebacks[first])


def _names_an_error(printed: list[str]) -> bool:
    """Whether the lines of a traceback reach its last one, which is not indented."""
    last = next((line for line in reversed(printed) if line.strip()), " ")
    return not last[0].isspace() and not last.startswith("Traceback (")


def _before_they_met(text: str) -> tuple[int, str] | None:
    """The same where a rank failed before there was a process group: torchrun names it at the end."""
    before, ended, after = text.partition("failed (exitcode")
    found = _TRACEBACK.search(before) if ended else None
    root = _ROOT.search(after)
    return (int(root[1]) if root else 0, found[0]) if found else None


def summary(text: str) -> str:
    """The message of a Spark error in one line, without Java's stack trace."""
    found = _PYTHON.search(text)
    line = found[1] if found else (spark[0] if (spark := _SPARK.search(text)) else text.strip())
    return line.partition("\n")[0][:300]
