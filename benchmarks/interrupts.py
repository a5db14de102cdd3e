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
import os
import queue
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks._campaign import _KEPT, _RAYS_OWN, Broken
from benchmarks._paired import Found, parser
from labkit.local import supervision

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
    """What is interrupted.

    Attributes:
        weight: how often it is drawn.
        seconds: how long it takes, about; the interrupt comes within them.
        does: the cell.
        needs: the cell that has to run before.
        group: calls that share a process; the first of a start and a stop is the start.
        works: what is true after it.
    """

    weight: int
    seconds: float
    does: str
    needs: str = ""
    group: str = "run"
    works: str = ""

    @property
    def alone(self) -> bool:
        """Whether nothing runs before a start, or after a stop."""
        return self.group != "run"


_START = "lab = cluster.start(cpus_per_node=4)"
_NONE = "if (one := globals().get('%s')) is not None: one.stop()"
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
_FIT = "panel, fit = runs.%s(name, config, store)\nwith panel: result = fit()"
CALLS = {
    "cluster.start": Call(8, 9, _START, _NONE % "lab", "cluster"),
    "lab.stop": Call(8, 3, "lab.stop()", _START, "cluster"),
    "storage.start": Call(18, 1.2, "store = storage.start()", _NONE % "store", "storage"),
    "store.stop": Call(16, 0.3, "store.stop()", "store = storage.start()", "storage"),
    "add_node": Call(9, 7, "lab.add_node(cpus=1)", _RUNNING),
    "fit": Call(13, 4, _FIT % "train", _RUNNING, works="runs.load(result.checkpoint)[0] == 6"),
    "sweep": Call(
        10, 4, _NEW + _FIT % "sweep", _RUNNING, works="len(result) == runs.TRIALS > result.num_errors"
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
        """The same for the same seed and number."""
        rng = random.Random(f"{seed}-{number}")
        (call,) = rng.choices(list(CALLS), [one.weight for one in CALLS.values()])
        where = rng.choice(["script", "script", "notebook"])
        return cls(number, call, where, round(rng.uniform(0, CALLS[call].seconds), 3))


# -- where a reader works ---------------------------------------------------------------------------

# Python in a terminal, which shows errors as IPython does.
_SCRIPT = """
import json, signal, sys, traceback
for line in iter(sys.stdin.readline, ""):
    said = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        exec(compile(json.loads(line), "<cell>", "exec"), globals())
    except BaseException as error:
        short = getattr(error, "_render_traceback_", None)
        said = "\\n".join(short()) if short else "".join(traceback.format_exception(error))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the call has ended: this one came too late
    print("\\0" + json.dumps(said), flush=True)
"""
_SETUP = "import json, os, sys, threading, time\nimport psutil\nfrom labkit.local import cluster, storage"
# What a process holds, of what an interrupted call may have left.
_HELD = """
held = [f"thread {one.name}" for one in threading.enumerate() if not one.daemon]
held += [f"port {one.laddr.port}" for one in psutil.Process().net_connections() if one.status == "LISTEN"]
if "ray" in sys.modules and sys.modules["ray"].is_initialized():
    import ray
    free = ray.available_resources().get("CPU", 0)
    held += [f"{free:g} of {lab.cpus:g} CPUs are free"] * (free != lab.cpus)
    held += [f"node {node.name}" for node in lab.nodes]
    groups = ray.util.placement_group_table().items()
    held += [f"placement group {number}" for number, group in groups if group["state"] != "REMOVED"]
print(json.dumps(held))
"""


class _Script:
    """Python in a terminal."""

    def __init__(self) -> None:
        self.home, self._said = Path(tempfile.mkdtemp(prefix="lk")), queue.SimpleQueue()
        (self.home / "tmp").mkdir()
        home = self.home
        self._open({**os.environ, "LABKIT_HOME": str(home), "LABKIT_SMALL": "1", "TMPDIR": str(home / "tmp")})
        self.run(_SETUP)
        self.idle = self.held()

    def run(self, code: str, after: float | None = None) -> tuple[str, str | None, float]:
        """Run a cell, and interrupt it `after` seconds, counted from the "go" that it prints.

        Returns:
            What it printed; its error as a front end shows it, or None; when the interrupt was sent.
        """
        self._send(code)
        text, sent, due, limit = "", 0.0, float("inf"), time.monotonic() + _PATIENT
        while (now := time.monotonic()) < limit:
            if now >= due:
                self._interrupt()
                sent, due, limit = now, float("inf"), now + _HUNG
            with contextlib.suppress(queue.Empty):
                kind, said = self._said.get(timeout=max(min(due, limit) - now, 0.001))
                if kind == "end":
                    return text, said, sent
                text += said
                if after is not None and "go\n" in text and not sent and due == float("inf"):
                    due = time.monotonic() + after
        raise Broken(f"it did not end: {text[-300:]}")

    def held(self) -> set[str]:
        """What this process, and all that belong to its home, hold."""
        said, error, _ = self.run(_HELD)
        if error is not None:
            raise Broken(f"nothing works any more: {error}")
        names = [path.name for path in (self.home / "tmp").iterdir()]
        # What a training writes into temporary folders of its own, Python names "tmp…".
        folders = {f"folder {name}" for name in names if not name.startswith((*_KEPT, "tmp"))}
        return {*json.loads(said), *folders, *_processes(self.home, self.pid)}

    def close(self) -> None:
        """Let it end as it does when a reader leaves; Broken if something is left then."""
        if not self._ends():
            self.kill()
            raise Broken("its process did not end by itself")
        if isinstance(self, _Notebook):
            supervision.stop(self.home)  # a kernel leaves it to the supervisor
        until = time.monotonic() + _SETTLED  # for the supervisor, which notices that its user has ended
        while (left := set(_processes(self.home, self.pid))) and time.monotonic() < until:
            time.sleep(0.2)
        self._clear()
        if left:
            raise Broken(f"left by its process: {'; '.join(left)}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._clear()

    def _clear(self) -> None:
        supervision.stop(self.home)
        shutil.rmtree(self.home, ignore_errors=True)

    def _open(self, environment: dict[str, str]) -> None:
        command = [sys.executable, "-c", _SCRIPT]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._process = subprocess.Popen(
            command, **pipes, text=True, cwd=_ROOT, env=environment, start_new_session=True
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._process.stdout:
            text, end, error = line.partition("\0")
            self._said.put(("text", text))
            if end:
                self._said.put(("end", json.loads(error)))

    def _send(self, code: str) -> None:
        print(json.dumps(code), file=self._process.stdin, flush=True)

    def _interrupt(self) -> None:
        os.killpg(self.pid, signal.SIGINT)

    def _ends(self) -> bool:
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENT)
        return self._process.poll() is not None


class _Notebook(_Script):
    """A kernel, as JupyterLab drives it."""

    @property
    def pid(self) -> int:
        return self._pid

    def kill(self) -> None:
        self._leave()
        self._manager.shutdown_kernel(now=True)
        self._clear()

    def _open(self, environment: dict[str, str]) -> None:
        from jupyter_client.manager import KernelManager

        self._cell, self._manager = "", KernelManager(kernel_name="python3")
        self._sending = threading.Lock()  # on a busy machine a cell can end before its id is noted
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._manager.start_kernel(cwd=str(_ROOT), env=environment, **quiet)
        self._pid = self._manager.provisioner.process.pid
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=_PATIENT)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        error: str | None = None
        while self._cell is not None:
            try:
                message = self._client.get_iopub_msg(timeout=0.2)
            except queue.Empty:
                continue
            kind, content = message["msg_type"], message["content"]
            with self._sending:
                if message["parent_header"].get("msg_id") != self._cell:
                    continue
            if kind == "stream":
                self._said.put(("text", content["text"]))
            elif kind == "error":
                error = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(content["traceback"]))
            elif kind == "status" and content["execution_state"] == "idle":
                self._said.put(("end", error))
                error = None

    def _send(self, code: str) -> None:
        with self._sending:
            self._cell = self._client.execute(code)

    def _interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def _leave(self) -> None:
        self._cell = None
        self._listener.join()
        self._client.stop_channels()

    def _ends(self) -> bool:
        self._leave()
        self._manager.shutdown_kernel()
        return not psutil.pid_exists(self.pid)


def _processes(home: Path, but: int) -> Iterator[str]:
    """The processes of a home, without workers of Ray that wait."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            title = " ".join(process.cmdline())
            waits = title.startswith("ray::") and title[5:].startswith(_RAYS_OWN) or _CLIENT in title
            if process.pid == but or waits or process.status() == psutil.STATUS_ZOMBIE:
                continue
            # Ray's agents overwrite their environment with their title; their logs give them away.
            of_home = process.environ().get("LABKIT_HOME") == str(home)
            if of_home or any(file.path.startswith(str(home)) for file in process.open_files()):
                yield f"process {process.pid}, {title.strip()[:80]}"


# -- one interrupt ----------------------------------------------------------------------------------


def one(plan: Plan, reader: _Script) -> float:
    """Interrupt a call, look at what follows, and call it again; seconds from the interrupt to its end.

    Raises:
        Broken: something is not as it should be; what, and the seconds if the call ended.
    """
    call, after = CALLS[plan.call], plan.after
    does = textwrap.indent(call.does, "    ")
    code = f"print('go', flush=True)\ntry:\n{does}\nfinally:\n    at = time.monotonic()"
    while True:
        _well(reader, call.needs)
        before = reader.idle if call.alone else reader.held()
        said, error, sent = reader.run(code, after)
        ended = float(reader.run("print(at)")[0])
        if sent > 0 and ended >= sent + (_SENT if error is None else 0):
            break
        if error is not None:
            raise Broken(f"it fails undisturbed: {error}")
        after /= 2  # it was quicker, and had ended before
    told = f"{plan.call} after {after:.3f} s in a {plan.where}"
    if error is None:
        raise Broken(f"{told}: LOST: {said.strip()[-300:]}")
    wrong = []
    if ended - sent > _WITHIN:
        wrong.append(f"took {ended - sent:.1f} s: {error.strip()[:200]}")
    if "stopped by you" not in error or "\n" in error.strip() or _UGLY.search(said + error):
        wrong.append(f"said {said[-1500:]} {error[-2500:]}")
    while left := reader.held() - before:
        if time.monotonic() > ended + _SETTLED:
            wrong.append(f"left {'; '.join(sorted(left))}")
            break
        time.sleep(0.2)
    if not wrong:
        _well(reader, f"{call.does}\nassert {call.works or True}")
        return ended - sent
    raise Broken(f"{told}: {'; '.join(wrong)}", ended - sent)


def _well(reader: _Script, code: str) -> None:
    for _ in range(3):
        said, error, _ = reader.run(code)
        if error is None or "timed out during startup" not in error:  # as Ray does on a busy machine
            break
    if error is not None:
        raise Broken(f"afterwards, {code.strip().splitlines()[-1]!r} ends with {error[-1500:]} {said[-500:]}")


# -- all of them ------------------------------------------------------------------------------------


def campaign(plans: list[Plan]) -> Iterator[tuple[Plan, float | None, str]]:
    """Make all interrupts: each with its seconds and what is wrong.

    A start and a stop come in turn, and each second start is in a new process, which has imported nothing.
    """
    count: Counter[tuple[str, str]] = Counter()
    todo = []
    for plan in plans:
        turn = count[plan.call, plan.where]
        count[plan.call, plan.where] += 1
        group = CALLS[plan.call].group
        process = (group, plan.where, turn // 2 if CALLS[plan.call].alone else 0)
        todo.append((process, turn if CALLS[plan.call].alone else 0, plan))
    order = list(CALLS)
    todo.sort(key=lambda one: (*one[:2], order.index(one[2].call), one[2].number))
    reader = None
    for (process, _, plan), later in zip(todo, [*todo[1:], None], strict=True):
        try:
            if reader is None:
                reader = (_Notebook if plan.where == "notebook" else _Script)()
            seconds = one(plan, reader)
            if later is None or later[0] != process:
                last, reader = reader, None
                last.close()
            yield plan, seconds, ""
        except Broken as error:
            if reader is not None:
                reader.kill()
            reader = None
            wrong, *seconds = error.args
            yield plan, *(seconds or [None]), wrong


def main() -> None:
    options = parser(__doc__, repeat=200)
    options.add_argument("--seed", type=int, default=7)
    options.add_argument("--first", type=int, metavar="K", help="the first of them (default 0)", default=0)
    options.add_argument("--only", help="one call, or one group of calls")
    options = options.parse_args()
    plans = [Plan.draw(options.seed, options.first + number) for number in range(options.repeat)]
    plans = [plan for plan in plans if options.only in (None, plan.call, CALLS[plan.call].group)]
    found, wrong = Found("interrupts", ours=""), defaultdict(list)
    figure = "from the interrupt to the end"
    for plan, seconds, said in campaign(plans):
        wrong[plan.call] += [said] * bool(said)
        print(f"{plan.number}: {'WRONG: ' * bool(said)}{said}", flush=True)
        if seconds is not None:
            found.add(plan.call, {figure: seconds})
    print("| call | interrupts | lost | otherwise wrong | median | longest | left |\n|" + "---|" * 7)
    for call, seconds in found.seconds.get(figure, {}).items():
        lost = [said for said in wrong[call] if "LOST" in said or "did not end" in said]
        left = {said.partition("left ")[2] for said in wrong[call]} - {""}
        row = len(seconds) + len(lost), len(lost), len(wrong[call]) - len(lost)
        row += f"{statistics.median(seconds):.1f}", f"{max(seconds):.1f}", "; ".join(left) or "nothing"
        print(f"| `{call}` | {' | '.join(map(str, row))} |")
    found.finish(sum(map(len, wrong.values())) / len(plans), json=options.json)


if __name__ == "__main__":
    main()
