"""The same generators on real ranks: processes that are connected by torch.distributed with Gloo."""

import contextlib
import multiprocessing
import os
import pickle
import re
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from typing import Any

import numpy as np

from course.schedule.ops import MESSAGES, Op
from labkit import interrupts, machine
from labkit.errors import RunFailed, expect_int

_LIMIT = 20.0  # seconds that a rank waits for another one
_START = 60.0  # seconds for processes that start on a busy machine
# Imported once, in a process from which the ranks are forked: torch takes a second and more.
# Without torch._dynamo, each rank would import it when it makes its first optimizer.
_PRELOADED = [
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "ray.cloudpickle",
    "course.schedule.ranks",
]
_HEADER = 10  # whole numbers before an array: its type, its number of axes, and their lengths
Finish = Callable[[], Any]  # waits for a message or a collective, and returns its result


@dataclass(frozen=True)
class Measured:
    """The outcome of real ranks: what each returned, and the seconds of the slowest."""

    results: list[Any]
    seconds: float

    def __repr__(self) -> str:
        return f"measured: {len(self.results)} real ranks, {self.seconds:.3f} s"


def on_ranks(program: Callable[..., Generator], world: int, *args: Any, limit: float = _LIMIT) -> Measured:
    """Run ``program(rank, world, *args)`` in `world` processes; none may wait for more than `limit` seconds.

    A script calls it below ``if __name__ == "__main__":``, as always with `multiprocessing`.

    Raises:
        RunFailed: a rank raised, or waited for too long.
    """
    from ray import cloudpickle

    attempt = f"run {getattr(program, '__name__', 'the program')} on {world} real ranks"
    expect_int(attempt, "world", world)
    payload = cloudpickle.dumps((program, args))
    answers, has_died = _answers(payload, world, limit)
    failed = [answer for answer in answers.values() if answer.error]
    failed.sort(key=lambda answer: (answer.is_echo, answer.rank))
    silent = ", ".join(str(rank) for rank in range(world) if rank not in answers)
    if silent and has_died:
        fact = f"a process ended without a word, and there is no answer from rank {silent}"
    elif failed:
        fact = f"rank {failed[0].rank} {failed[0].error}"
    elif silent:
        fact = f"there was no answer from rank {silent}"
    else:
        results = [pickle.loads(answers[rank].result) for rank in range(world)]
        seconds = max(answer.seconds for answer in answers.values())
        return Measured(results, seconds)
    raise RunFailed(attempt, fact, "run it in the simulator, which explains a deadlock")


@dataclass(frozen=True)
class _Answer:
    """The result of one rank, or its error."""

    rank: int
    error: str = ""
    result: bytes = b""  # pickled
    seconds: float = 0.0

    @property
    def is_echo(self) -> bool:
        """True if another rank's failure caused this one: a rank that gives up closes its connections."""
        return "by peer" in self.error


def _answers(payload: bytes, world: int, limit: float) -> tuple[dict[int, _Answer], bool]:
    """Run all ranks; return the answers that came, and whether a process has died."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    others = set(multiprocessing.active_children())
    answers: dict[int, _Answer] = {}
    deadline = time.monotonic() + _START + limit
    with (
        tempfile.TemporaryDirectory(prefix="labkit-ranks-") as folder,
        contextlib.ExitStack() as ends,
    ):
        with interrupts.held():  # a pool that is interrupted while it starts leaves its processes
            pool = ends.enter_context(context.Pool(world, _watch_parent))
        ranks = set(multiprocessing.active_children()) - others  # the pool replaces those that end
        run_rank = partial(_rank, world=world, payload=payload, folder=folder, limit=limit)
        arriving = pool.imap_unordered(run_rank, range(world))
        while len(answers) < world and time.monotonic() < deadline:
            try:
                answer = arriving.next(timeout=1)
                answers[answer.rank] = answer
            except multiprocessing.TimeoutError:
                if any(process.exitcode is not None for process in ranks):
                    return answers, True
                if any(answer.error and not answer.is_echo for answer in answers.values()):
                    break
    return answers, False


def _rank(rank: int, *, world: int, payload: bytes, folder: str, limit: float) -> _Answer:
    """Run one rank of the pickled program, in its process; `folder` is the store's."""
    import logging
    import warnings

    import torch
    import torch.distributed as dist

    answering = None
    try:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")  # the notebook would show those of all ranks
        logging.disable(logging.WARNING)
        os.environ["GLOO_SOCKET_IFNAME"] = machine.LOOPBACK
        store = dist.FileStore(f"{folder}/store", world)
        timeout = timedelta(seconds=limit)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timeout)
        program, args = pickle.loads(payload)
        answering = _Answering(program(rank, world, *args))
        dist.barrier()
        begin = time.perf_counter()
        value = answering.run()
        seconds = time.perf_counter() - begin
        dist.barrier()
        return _Answer(rank, result=pickle.dumps(value), seconds=seconds)
    except BaseException as error:
        first_line = str(error).strip().partition("\n")[0]
        text = re.sub(r"^\[\S+\] |\. This is typically.*", "", first_line)
        if answering is not None and answering.doing:
            place = f" when it {answering.doing}"
        else:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f" (line {frame.lineno})"
        return _Answer(rank, error=f"raised {type(error).__name__}: {text}{place}")


def _watch_parent() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the one that started it is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(0)


class _Answering:
    """Runs a generator, and answers each of its yields by torch.distributed."""

    def __init__(self, generator: Generator) -> None:
        self.generator: Any = generator
        self.doing = ""
        self.messages: Counter[tuple] = Counter()  # of each ("send" or "recv", rank)
        self.groups: dict[tuple | None, Any] = {None: None}
        self.started: list[Finish] = []

    def run(self) -> Any:
        value = None
        while True:
            try:
                op = self.generator.send(value)
            except StopIteration as end:
                for finish in self.started:
                    finish()
                return end.value
            self.doing = f"{op} in line {self.generator.gi_frame.f_lineno}"
            value = self._answer(op)
            self.doing = ""

    def _answer(self, op: Op) -> Any:
        if op.kind == "compute":
            return None
        if op.kind == "start":
            self.started.append(cache(self._begin(op.inner)))  # asked again, it has its result
            return self.started[-1]
        if op.kind == "wait":
            return op.inner()
        return self._begin(op)()

    def _begin(self, op: Op) -> Finish:
        if op.kind not in MESSAGES:
            return self._collective(op)
        number = self.messages[op.kind, op.peer]
        self.messages[op.kind, op.peer] += 1
        tags = (2 * number, 2 * number + 1)  # of the header and of the array
        if op.kind == "send":
            return self._send(op, tags)
        return self._recv(op, tags)

    def _send(self, op: Op, tags: tuple[int, int]) -> Finish:
        import torch
        import torch.distributed as dist

        array = np.ascontiguousarray(op.array)
        header = torch.zeros(_HEADER, dtype=torch.int64)
        described = [ord(array.dtype.char), array.ndim, *array.shape]
        header[: len(described)] = torch.tensor(described)
        content = torch.from_numpy(array)
        header_sent = dist.isend(header, op.peer, tag=tags[0])
        content_sent = dist.isend(content, op.peer, tag=tags[1])

        def finish(_keep: tuple = (header, content)) -> None:  # Gloo reads both until they are sent
            header_sent.wait()
            content_sent.wait()

        return finish

    def _recv(self, op: Op, tags: tuple[int, int]) -> Finish:
        import torch
        import torch.distributed as dist

        header = torch.zeros(_HEADER, dtype=torch.int64)
        work = dist.irecv(header, op.peer, tag=tags[0])

        def finish() -> np.ndarray:
            work.wait()
            dtype, axes, *shape = header.tolist()
            array = np.empty(shape[:axes], np.dtype(chr(dtype)))
            dist.recv(torch.from_numpy(array), op.peer, tag=tags[1])
            return array

        return finish

    def _collective(self, op: Op) -> Finish:
        import torch
        import torch.distributed as dist

        if op.group is not None and op.group not in self.groups:
            self.groups[op.group] = dist.new_group(list(op.group), use_local_synchronization=True)
        group = self.groups[op.group]
        world = dist.get_world_size(group)
        mine = torch.from_numpy(np.ascontiguousarray(op.array))
        options = {"group": group, "async_op": True}
        if op.kind == "all_reduce":
            result = mine
            work = dist.all_reduce(mine, **options)
        elif op.kind == "all_gather":
            result = torch.empty((world * mine.shape[0], *mine.shape[1:]), dtype=mine.dtype)
            work = dist.all_gather_single(result, mine, **options)
        else:
            result = torch.empty((mine.shape[0] // world, *mine.shape[1:]), dtype=mine.dtype)
            work = dist.reduce_scatter_single(result, mine, **options)

        def finish(_keep: torch.Tensor = mine) -> np.ndarray:  # Gloo reads it until the end
            work.wait()
            return result.numpy()

        return finish
