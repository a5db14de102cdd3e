"""`ray start` fails if the dashboard agent needs more than 15 s to start. Two minutes.

A sitecustomize.py makes the agent slow, as a cold disk or a busy machine does.
"""

import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ray

SLOW = """
import sys, time
if any("dashboard/agent.py" in argument for argument in sys.orig_argv):
    time.sleep(20)
"""


def main(folder: Path) -> None:
    print("ray", ray.__version__)
    (folder / "sitecustomize.py").write_text(SLOW)
    session = folder / "r"
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port=0"),
        *("--num-cpus=1", "--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={session}"),
    ]
    env = {**os.environ, "PYTHONPATH": str(folder), "RAY_AUTH_MODE": "token"}
    env["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    begin = time.monotonic()
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        printed, _ = process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        process.terminate()  # with --block, that ends all that it has started
        printed, _ = process.communicate(timeout=30)
        print("it runs: nothing to see here")
    print(f"ray start: status {process.returncode} after {time.monotonic() - begin:.0f} s")
    print("the last line that it printed:", printed.strip().splitlines()[-1][:200])
    for log in session.glob("session_2*/logs/raylet.err"):
        for line in log.read_text(errors="replace").splitlines():
            if "Check failed" in line:
                print("raylet.err:", line[line.index("Check failed") :][:160])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="r") as folder:
        main(Path(folder))
