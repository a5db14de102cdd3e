"""Install the lab into this environment, for `make setup`: the torch that fits this machine, then the rest.

    python tools/install.py                  without an NVIDIA device, torch's build for CPUs
    TORCH=cuda python tools/install.py       what pip finds; on Linux, PyPI's torch brings CUDA (several GB)
    TORCH=cpu python tools/install.py        the build for CPUs, whatever devices there are

The build for CPUs is on PyTorch's own index. If that index doesn't answer within three seconds, pip installs
what it finds. TORCH_INDEX names another index with the same layout, such as a mirror.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INDEX = "https://download.pytorch.org/whl/cpu"
EVERYTHING = ".[lessons,tensorflow,spark,recipes,dev]"
_SECONDS = 3


def has_nvidia_device() -> bool:
    """Return whether the kernel or NVIDIA's own tool knows a GPU here."""
    if glob.glob("/dev/nvidia[0-9]*"):
        return True
    tool = shutil.which("nvidia-smi")
    return bool(tool) and subprocess.run([tool, "--list-gpus"], capture_output=True).stdout.startswith(b"GPU")


def chosen_build(variables: Mapping[str, str], platform: str = sys.platform) -> str:
    """Return ``cpu`` or ``cuda``: what TORCH asks for, else what the devices ask for.

    Raises:
        SystemExit: TORCH has another value.
    """
    asked = variables.get("TORCH", "").strip().lower()
    if asked not in ("", "cpu", "cuda"):
        raise SystemExit(
            f"could not install torch\n  because TORCH is {asked!r}\n  fix: TORCH=cpu or TORCH=cuda"
        )
    needs_no_index = platform != "linux"  # elsewhere PyPI has the build for CPUs
    return asked or ("cuda" if needs_no_index or has_nvidia_device() else "cpu")


def answers(index: str, seconds: float = _SECONDS) -> bool:
    """Return whether a package index lists torch within `seconds`."""
    try:
        with urllib.request.urlopen(f"{index.rstrip('/')}/torch/", timeout=seconds) as answer:
            return answer.status == 200
    except (OSError, ValueError):
        return False


def cpu_index(variables: Mapping[str, str]) -> str | None:
    """Return PyTorch's own index, if the chosen build comes from there and it answers; else None."""
    index = variables.get("TORCH_INDEX", INDEX)
    return index if chosen_build(variables) == "cpu" and answers(index) else None


def torch_from(index: str) -> list[str]:
    """Return pip's options for torch alone from an index of PyTorch's, which has little else."""
    (pin,) = re.findall(r"(?m)^torch==\S+", (ROOT / "constraints.txt").read_text())
    return ["--no-deps", "--index-url", index, pin]


def commands(index: str | None) -> list[list[str]]:
    """Return pip's arguments, a list per call; torch has a call of its own if it comes from an index."""
    rest = ["install", "--constraint", "constraints.txt", "--editable", EVERYTHING]
    return [rest] if index is None else [["install", *torch_from(index)], rest]


def installed() -> str:
    """Describe the build of torch that is there, and its size with CUDA's libraries."""
    folder = Path(str(metadata.distribution("torch").locate_file("")))
    parts = [folder / "torch", folder / "nvidia", folder / "triton"]
    size = sum(path.lstat().st_size for part in parts if part.exists() for path in part.rglob("*"))
    return f"torch {metadata.version('torch')}, {size / 1e9:.1f} GB"


def main() -> None:
    index = cpu_index(os.environ)
    if index is not None:
        choice = "torch's build for CPUs"
    elif chosen_build(os.environ) == "cpu":
        choice = "what pip finds: torch's index for CPUs doesn't answer"
    else:
        choice = "torch as pip finds it"
    print(f"installing {choice} (TORCH=cpu or TORCH=cuda decides), and the lab", flush=True)
    for arguments in commands(index):
        done = subprocess.run([sys.executable, "-m", "pip", *arguments], cwd=ROOT)
        if done.returncode:
            raise SystemExit(done.returncode)
    print(f"installed {installed()}")


if __name__ == "__main__":
    main()
