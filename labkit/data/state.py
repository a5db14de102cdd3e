"""What an execution of Ray Data does, operator by operator: state alone, no drawing and no ray.

An execution is a chain of operators (list, read, map, …). All work at the same time, each on the blocks
that the one before it has finished.
"""

import math
import time
from dataclasses import dataclass, field

_MOST_SAMPLES = 2000


@dataclass
class OperatorState:
    """One operator.

    Attributes:
        name: Ray Data's: "ReadImage", "MapBatches(scale)", …
        rows: that came out so far.
        blocks: pieces of the table in which they came out.
        bytes: of these blocks.
        running, finished: tasks.
        queued: blocks that wait to be taken in.
        memory, memory_peak: bytes in the object store that are its own, now and at most.
        held: seconds in which it had work and no CPU, or no room, to start a task (back-pressure).
        seconds: that its tasks took, added up; known when they are done.
        cpu_seconds: of these, those in which a core was busy.
        over: it is done.
    """

    name: str
    rows: int = 0
    blocks: int = 0
    bytes: int = 0
    running: int = 0
    finished: int = 0
    queued: int = 0
    memory: int = 0
    memory_peak: int = 0
    held: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    over: bool = False

    @property
    def rows_per_second(self) -> float:
        """Rows in each second of a task of its own; NaN while no time is known."""
        return self.rows / self.seconds if self.seconds else math.nan


@dataclass
class ExecutionState:
    """All that a panel follows between its opening and its closing.

    Attributes:
        name: the panel's.
        status: "running", "finished", "failed" or "stopped".
        executions: of each dataset that was executed, its operators in the order of the data.
        samples: (seconds since the start, bytes in the object store, bytes of all Ray processes).
        failure: the short traceback of what ended it.
    """

    name: str
    status: str = "running"
    executions: list[list[OperatorState]] = field(default_factory=list)
    samples: list[tuple[float, int, int]] = field(default_factory=list)
    failure: str = ""
    started_at: float = field(default_factory=time.monotonic)
    ended_at: float | None = None

    @property
    def operators(self) -> list[OperatorState]:
        """Those of all executions, one after the other."""
        return [operator for execution in self.executions for operator in execution]

    @property
    def rows(self) -> int:
        """That came out of the last execution."""
        return self.executions[-1][-1].rows if self.executions and self.executions[-1] else 0

    @property
    def seconds(self) -> float:
        """From the opening to the closing, or to now."""
        return (self.ended_at or time.monotonic()) - self.started_at

    @property
    def bytes(self) -> int:
        """That passed through the object store."""
        return sum(operator.bytes for operator in self.operators)

    @property
    def memory_peak(self) -> int:
        """Most bytes in the object store at one time."""
        return max((stored for _, stored, _ in self.samples), default=0)

    @property
    def process_peak(self) -> int:
        """Most bytes of all Ray processes together at one time, what they share not counted."""
        return max((processes for *_, processes in self.samples), default=0)

    def sample(self, stored: int, processes: int) -> None:
        """Note what is used now; of a long run, ever rarer."""
        self.samples.append((self.seconds, stored, processes))
        if len(self.samples) > _MOST_SAMPLES:
            del self.samples[1::2]

    def end(self, status: str, failure: str = "") -> None:
        self.status, self.failure, self.ended_at = status, failure, time.monotonic()
