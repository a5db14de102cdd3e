"""A class of thirty on one machine: what sharing costs a learner, and how late the teacher's board is.

    .venv/bin/python -m benchmarks classroom [--learners 30] [--seconds 600] [--bucket] [--json FILE]

Each learner is a process with an IPython shell and a home of its own with twenty past runs. It joins the
class and runs a cell every five seconds that predicts something. One more does the same and has not joined:
the difference of their CPU time is what sharing costs. The board is ``python -m labkit class board``, as a
teacher starts it. A delay is the time from the end of a cell to the first page that knows of it; the browser,
which loads the page every five seconds, is not counted. With ``--bucket`` the place is a bucket of the lab's
own object store. The last line is ``classroom: ratio=…``: the median delay over five seconds.
"""

import argparse
import math
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil

from benchmarks._paired import Found, parser
from labkit import classroom, storage
from labkit.runs import RunRecord

_PAUSE = 5.0  # seconds between two cells
_ROW = re.compile(r'<tr><td>(learner-\d+)</td>(?:(?!</tr>).)*<time datetime="([^"]+)">')


def learner(number, home, place, seconds, joined, results):
    """Work for some seconds; then put (number, joined, CPU seconds, MB, when cells ended) into `results`."""
    os.environ["LABKIT_HOME"] = str(home)
    from IPython.core.interactiveshell import InteractiveShell

    for run in range(20):
        told = {"engine": "Ray Train", "state": "finished", "started_at": datetime.now(UTC).isoformat()}
        name = f"03-run-{run}" if run else "03-one-process"
        record = RunRecord(name=name, run_id="a", workers=1 + bool(run), rows_per_second=9e3 + run, **told)
        record.write(home / "runs" / record.name / "a")
    shell = InteractiveShell.instance()
    shell.run_cell("from labkit.exercises import predict, reveal", silent=True)
    if joined:
        classroom.join(place, f"learner-{number}")
    time.sleep(_PAUSE * (1 + number / 30))  # a class is not in step
    busy, ends, begin = time.process_time(), [], time.monotonic()
    while time.monotonic() - begin < seconds:
        with open(os.devnull, "w") as sys.stdout:
            shell.run_cell(f'predict("03-{"abcdef"[len(ends) % 6]}", {number + len(ends)})')
        ends.append(math.floor(time.time() * 1000) / 1000)
        time.sleep(max(0.0, begin + _PAUSE * len(ends) - time.monotonic()))
    time.sleep(3 * _PAUSE)
    results.put((number, joined, time.process_time() - busy, psutil.Process().memory_info().rss / 1e6, ends))


def main() -> None:
    options = parser(__doc__, repeat=1)
    options.add_argument("--learners", type=int, default=30)
    options.add_argument("--seconds", type=float, default=600)
    options.add_argument("--bucket", action="store_true")
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LABKIT_HOME"] = folder
        place = f"{folder}/class"
        os.mkdir(place)
        if options.bucket:
            from labkit.storage.client import read_keys  # learners import it themselves

            store = storage.start(bucket="class")
            place = f"{store.endpoint}/class"
            keys = dict(zip(("ACCESS", "SECRET"), read_keys(store.keys), strict=True))
            os.environ.update({f"LABKIT_S3_{name}_KEY": key for name, key in keys.items()})
        run(options, Path(folder), place)


def run(options: argparse.Namespace, folder: Path, place: str) -> None:
    spawn, page = multiprocessing.get_context("spawn"), folder / "board.html"
    results, seen, ended, last = spawn.Queue(), [], [], 0.0
    args = [(n, folder / f"home-{n}", place, options.seconds, n > 0) for n in range(options.learners + 1)]
    learners = [spawn.Process(target=learner, args=(*one, results), daemon=True) for one in args]
    for process in learners:
        process.start()
    command = [sys.executable, "-m", "labkit", "class", "board", place, "--output", str(page)]
    board = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while len(ended) < len(learners):
            time.sleep(0.1)
            if page.exists() and (written := page.stat().st_mtime) != last:
                last = written
                times = _ROW.findall(page.read_text())
                seen.append((last, {name: datetime.fromisoformat(at).timestamp() for name, at in times}))
            if any(process.exitcode for process in learners):
                raise SystemExit("a learner's process has failed")
            while not results.empty():
                ended.append(results.get())
        busy = sum(psutil.Process(board.pid).cpu_times()[:2])
    finally:
        board.terminate()
        board.wait()
    tell(ended, seen, busy, options)


def tell(ended: list, seen: list, busy: float, options: argparse.Namespace) -> None:
    delays, lost = [], 0
    for number, joined, _, _, ends in ended:
        for moment in ends if joined else ():
            pages = (at for at, names in seen if names.get(f"learner-{number}", 0) >= moment)
            if (first := next(pages, None)) is None:
                lost += 1
            else:
                delays.append(first - moment)
    (alone,) = [one for one in ended if not one[1]]
    costs = [one[2] - alone[2] for one in ended if one[1]]
    updates = len(alone[4])
    each = statistics.median(costs) / updates
    print(f"{len(costs)} learners, {updates} cells each, {len(seen)} pages, {lost} cells on no page")
    print(f"CPU of a learner: {1000 * each:.1f} ms for a cell, {each / _PAUSE:.2%} of a core")
    print(f"memory: {statistics.median(one[3] for one in ended if one[1]) - alone[3]:.0f} MB more")
    print(f"CPU of the board: {1000 * busy / len(seen):.0f} ms for a page, its start included")
    print(f"delay, the 95th percentile: {statistics.quantiles(delays, n=20)[-1]:.2f} s")
    found = Found("classroom", ours="board")
    found.seconds = {"CPU of a learner": {"sharing": costs}, "delay": {"board": delays}}
    found.finish(statistics.median(delays) / _PAUSE, json=options.json)


if __name__ == "__main__":
    main()
