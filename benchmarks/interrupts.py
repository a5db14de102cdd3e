"""Interrupts at random moments of starts, stops, a fit and a sweep: each must end in seconds, in one line.

    .venv/bin/python -m benchmarks interrupts [--repeat 200] [--seed 7] [--first K] [--json FILE]

An interrupt is Ctrl-C in a terminal (SIGINT to a script and what is in its process group) or ■ in a notebook
(through `jupyter_client`). Interrupt K of a seed is always the same call at the same moment, so `--repeat 1
--first K` makes it again. After each of them

- the call ended within 5 s, with one line that says that it was stopped, and printed no traceback;
- no process, port, temporary folder or thread is left, and no CPU or placement group of Ray is taken;
- the same call works in the same process, and that process then ends by itself.

The last line is ``interrupts: ratio=…``, the part of the interrupts of which this is not true.
"""

import contextlib
import json
import math
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import _left
from benchmarks._campaign_runs import Broken
from benchmarks._paired import Results, parser
from labkit.local.lab import Lab

_ROOT = Path(__file__).parents[1]
_WITHIN = 5.0  # seconds from an interrupt to the end of the call
_SENT = 0.05  # seconds that an interrupt takes to arrive in a kernel: a call may end meanwhile
_SETTLED = 10.0  # seconds from there until Ray has ended what was used
_CLIENT = "labkit/local/forkserver/client.py"  # as what Ray started its workers, which are forked
_PATIENT = 300.0  # seconds for what isn't interrupted, on a busy machine
_HUNG = 60.0  # seconds after which a call that doesn't end is given up
_UGLY = re.compile(r"Traceback|Exception ignored|KeyboardInterrupt|SystemExit|\w+Error\b")


@dataclass(frozen=True)
class Call:
    """A call that is interrupted.

    Attributes:
        weight: how often it is drawn.
        seconds: how long it takes, about; the interrupt comes within them.
        does: the cell.
        needs: the cell that has to run before.
        alone: whether nothing runs before it, as before a start, or after it, as after a stop.
        works: what is true after it.
    """

    weight: int
    seconds: float
    does: str
    needs: str = ""
    alone: bool = False
    works: str = ""


_START = "lab = cluster.start(cpus_per_node=4)"
_NONE = "if globals().get('{0}') is not None: {0}.stop()"
_NEW = 'name = f"run-{time.time_ns()}"\n'
_RUNNING = f"""
import ray.train.torch, ray.tune
from benchmarks import _campaign_runs as runs
{_START}
store = storage.start()
for node in lab.nodes[1:]:
    lab.remove_node(node)
{_NEW}log = os.path.join(os.environ["LABKIT_HOME"], "steps")
config = {{"kind": "torch", "log": log, "epochs": 6, "steps": 20}}
"""
_FIT = "panel, fit = runs.{}(name, config, store)\nwith panel: result = fit()"
CALLS = {
    "cluster.start": Call(8, 9, _START, _NONE.format("lab"), alone=True),
    "lab.stop": Call(8, 3, "lab.stop()", _START, alone=True),
    "storage.start": Call(18, 1.2, "store = storage.start()", _NONE.format("store"), alone=True),
    "store.stop": Call(16, 0.3, "store.stop()", "store = storage.start()", alone=True),
    "add_node": Call(9, 7, "lab.add_node(cpus=1)", _RUNNING),
    "fit": Call(13, 4, _FIT.format("train"), _RUNNING, works="runs.load(result.checkpoint)[0] == 6"),
    "sweep": Call(
        10,
        4,
        _NEW + _FIT.format("sweep"),
        _RUNNING,
        works="len(result) == runs.TRIALS > result.num_errors",
    ),
}


@dataclass(frozen=True)
class Plan:
    """One interrupt: of which call, where, and how many seconds after its beginning."""

    number: int
    call: str
    where: str
    after: float

    @classmethod
    def draw(cls, seed: int, number: int) -> "Plan":
        """Draw an interrupt: the same for the same seed and number."""
        rng = random.Random(f"{seed}-{number}")
        (call,) = rng.choices(list(CALLS), [call.weight for call in CALLS.values()])
        where = rng.choice(["script", "script", "notebook"])
        return cls(number, call, where, round(rng.uniform(0, CALLS[call].seconds), 3))


# -- where a reader works ---------------------------------------------------------------------------

# Python in a terminal, which shows errors as IPython does.
_SCRIPT = """
import json, signal, sys, traceback
for line in iter(sys.stdin.readline, ""):
    shown = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        exec(compile(json.loads(line), "<cell>", "exec"), globals())
    except BaseException as error:
        short = getattr(error, "_render_traceback_", None)
        shown = "\\n".join(short()) if short else "".join(traceback.format_exception(error))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the call has ended: this one came too late
    print("\\0" + json.dumps(shown), flush=True)
"""
_SETUP = """
import json, os, sys, threading, time
from benchmarks import _left
from labkit.local import cluster, storage
"""
# What a process holds, of what an interrupted call may have left.
_HELD = """
held = [f"thread {thread.name}" for thread in threading.enumerate() if not thread.daemon]
held += _left.ports()
if "ray" in sys.modules and sys.modules["ray"].is_initialized():
    held += _left.of_cluster(lab.cpus)
    held += [f"node {node.name}" for node in lab.nodes]
print(json.dumps(held))
"""


class _Script:
    """Python in a terminal."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="lk"))
        self._output = queue.SimpleQueue()
        temporary = self.home / "tmp"
        temporary.mkdir()
        variables = {"LABKIT_HOME": str(self.home), "LABKIT_SMALL": "1", "TMPDIR": str(temporary)}
        self._open({**os.environ, **variables})
        self.run(_SETUP)
        self.idle = self.held()

    def run(self, code: str, after: float | None = None) -> tuple[str, str | None, float]:
        """Run a cell, and interrupt it `after` seconds, counted from the "go" that it prints.

        Returns:
            What it printed; its error as a front end shows it, or None; when the interrupt was sent.
        """
        self._send(code)
        printed = ""
        sent = 0.0
        due = math.inf
        now = time.monotonic()
        limit = now + _PATIENT
        while now < limit:
            if now >= due:
                self._interrupt()
                sent = now
                due = math.inf
                limit = now + _HUNG
            with contextlib.suppress(queue.Empty):
                event, text = self._next(max(min(due, limit) - now, 0.001))
                if event == "end":
                    return printed, text, sent
                printed += text
                if after is not None and "go\n" in printed and not sent and due == math.inf:
                    due = time.monotonic() + after
            now = time.monotonic()
        raise Broken(f"it did not end: {printed[-300:]}")

    def held(self) -> set[str]:
        """List what this process, and all that belong to its home, hold."""
        printed, error, _ = self.run(_HELD)
        if error is not None:
            raise Broken(f"nothing works any more: {error}")
        folders = _left.folders(self.home / "tmp")
        # What a training writes into temporary folders of its own, Python names "tmp…".
        folders = {folder for folder in folders if not folder.startswith("folder tmp")}
        return {*json.loads(printed), *folders, *_processes(self.home, self.pid)}

    def close(self) -> str:
        """Let it end as it does when a reader leaves; return what is wrong then."""
        if not self._ends():
            self.kill()
            return "its process did not end by itself"
        if isinstance(self, _Notebook):
            Lab(self.home).stop()  # a kernel leaves it to the supervisor
        deadline = time.monotonic() + _SETTLED  # for the supervisor, which notices that its user has ended
        left = set(_processes(self.home, self.pid))
        while left and time.monotonic() < deadline:
            time.sleep(0.2)
            left = set(_processes(self.home, self.pid))
        self._clear()
        return f"left by its process: {'; '.join(left)}" if left else ""

    def kill(self) -> None:
        self._process.kill()
        self._clear()

    def _clear(self) -> None:
        Lab(self.home).stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def _open(self, environment: dict[str, str]) -> None:
        command = [sys.executable, "-c", _SCRIPT]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._process = subprocess.Popen(
            command, **pipes, text=True, cwd=_ROOT, env=environment, start_new_session=True
        )
        self.pid = self._process.pid
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._process.stdout:
            text, end, error = line.partition("\0")
            self._output.put(("text", text))
            if end:
                self._output.put(("end", json.loads(error)))

    def _send(self, code: str) -> None:
        print(json.dumps(code), file=self._process.stdin, flush=True)

    def _next(self, timeout: float) -> tuple[str, str | None]:
        """Return ("text", what is printed) or ("end", error or None); queue.Empty after `timeout` seconds."""
        return self._output.get(timeout=timeout)

    def _interrupt(self) -> None:
        os.killpg(self.pid, signal.SIGINT)

    def _ends(self) -> bool:
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENT)
        return self._process.poll() is not None


class _Notebook(_Script):
    """A kernel, as JupyterLab drives it."""

    def kill(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._clear()

    def _open(self, environment: dict[str, str]) -> None:
        from jupyter_client.manager import KernelManager

        self._manager = KernelManager(kernel_name="python3")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._manager.start_kernel(cwd=str(_ROOT), env=environment, **quiet)
        self.pid = self._manager.provisioner.process.pid
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=_PATIENT)

    def _send(self, code: str) -> None:
        self._error = None
        self._cell = self._client.execute(code)

    def _next(self, timeout: float) -> tuple[str, str | None]:
        message = self._client.get_iopub_msg(timeout=timeout)
        content = message["content"]
        if message["parent_header"].get("msg_id") == self._cell:
            if message["msg_type"] == "stream":
                return "text", content["text"]
            if message["msg_type"] == "error":
                self._error = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(content["traceback"]))
            if content.get("execution_state") == "idle":
                return "end", self._error
        return "text", ""

    def _interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def _ends(self) -> bool:
        self._client.stop_channels()
        self._manager.shutdown_kernel()
        return not psutil.pid_exists(self.pid)


def _processes(home: Path, but: int) -> Iterator[str]:
    """Yield the processes of a home, without workers of Ray that wait."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            title = " ".join(process.cmdline())
            waits = _left.is_idle(title) or _CLIENT in title
            if process.pid == but or waits or process.status() == psutil.STATUS_ZOMBIE:
                continue
            # Ray's agents overwrite their environment with their title; their logs give them away.
            of_home = process.environ().get("LABKIT_HOME") == str(home)
            if of_home or any(file.path.startswith(str(home)) for file in process.open_files()):
                yield f"process {process.pid}, {title.strip()[:80]}"


# -- one interrupt ----------------------------------------------------------------------------------


def make(plan: Plan, reader: _Script) -> float:
    """Interrupt a call, look at what follows, and call it again; return the seconds until it ended."""
    call = CALLS[plan.call]
    after = plan.after
    does = textwrap.indent(call.does, "    ")
    code = f"print('go', flush=True)\ntry:\n{does}\nfinally:\n    at = time.monotonic()"
    while True:
        _well(reader, call.needs)
        before = reader.idle if call.alone else reader.held()
        printed, error, sent = reader.run(code, after)
        ended = float(reader.run("print(at)")[0])
        if sent > 0 and ended >= sent + (_SENT if error is None else 0):
            break
        if error is not None:
            raise Broken(f"it fails undisturbed: {error}")
        after /= 2  # it was quicker, and had ended before
    moment = f"{plan.call} after {after:.3f} s in a {plan.where}"
    if error is None:
        raise Broken(f"{moment}: LOST: {printed.strip()[-300:]}")
    wrong = []
    if ended - sent > _WITHIN:
        wrong.append(f"took {ended - sent:.1f} s: {error.strip()[:200]}")
    if "stopped by you" not in error or "\n" in error.strip() or _UGLY.search(printed + error):
        wrong.append(f"printed {printed[-1500:]} {error[-2500:]}")
    left = reader.held() - before
    while left and time.monotonic() <= ended + _SETTLED:
        time.sleep(0.2)
        left = reader.held() - before
    if left:
        wrong.append(f"left {'; '.join(sorted(left))}")
    if wrong:
        raise Broken(f"{moment}: {'; '.join(wrong)}")
    _well(reader, f"{call.does}\nassert {call.works or True}")
    return ended - sent


def _well(reader: _Script, code: str) -> None:
    for _ in range(3):
        printed, error, _ = reader.run(code)
        if error is None or "timed out during startup" not in error:  # as Ray does on a busy machine
            break
    if error is not None:
        last = code.strip().splitlines()[-1]
        raise Broken(f"afterwards, {last!r} ends with {error[-1500:]} {printed[-500:]}")


# -- all of them ------------------------------------------------------------------------------------


def campaign(plans: list[Plan]) -> Iterator[tuple[Plan, float | None, str]]:
    """Make all interrupts, each in a process of its own; yield it with its seconds and what is wrong."""
    for plan in plans:
        reader = _Notebook() if plan.where == "notebook" else _Script()
        try:
            seconds = make(plan, reader)
        except Broken as error:
            reader.kill()
            yield plan, None, str(error)
        else:
            yield plan, seconds, reader.close()


def main() -> None:
    options = parser(__doc__, repeat=200)
    options.add_argument("--seed", type=int, default=7)
    options.add_argument("--first", type=int, metavar="K", help="the first of them (default 0)", default=0)
    options = options.parse_args()
    plans = [Plan.draw(options.seed, options.first + number) for number in range(options.repeat)]
    results = Results("interrupts", ours="")
    wrong = 0
    for plan, seconds, problem in campaign(plans):
        print(f"{plan.number}: {'WRONG: ' if problem else ''}{problem}", flush=True)
        wrong += bool(problem)
        if seconds is not None:
            results.add(plan.call, {"from the interrupt to the end": seconds})
    results.finish(wrong / len(plans), json=options.json)


if __name__ == "__main__":
    main()
