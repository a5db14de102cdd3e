"""What an execution of Ray Data does, operator by operator.

An execution is a chain of operators (list, read, map, …). All work at the same time, each on the blocks
that the one before it has finished.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from labkit.panel.state.base import State

_MAX_SAMPLES = 2000


@dataclass
class OperatorState:
    """One operator.

    Attributes:
        name: Ray Data's: "ReadImage", "MapBatches(scale)", …
        rows, blocks, bytes: that came out so far; a block is a piece of the table.
        running, finished: tasks.
        queued: blocks that wait to be processed.
        memory, memory_peak: bytes in the object store that are its own, now and at most.
        backpressure_seconds: time with input ready but no CPU or object-store budget to start a task.
        seconds, cpu_seconds: of all its tasks, and those in which a core was busy; known when they are done.
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
    backpressure_seconds: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def rows_per_second(self) -> float:
        """Rows in each second of its tasks; NaN while no time is known."""
        return self.rows / self.seconds if self.seconds else math.nan


class ExecutionState(State):
    """What Ray Data executed between the opening of a panel and its closing.

    Attributes:
        executions: of each dataset that was executed, its operators in the order of the data.
        samples: (seconds since the start, bytes in the object store).
    """

    engine = "Ray Data"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.executions: list[list[OperatorState]] = []
        self.samples: list[tuple[float, int]] = []

    @property
    def operators(self) -> list[OperatorState]:
        return [operator for execution in self.executions for operator in execution]

    @property
    def rows(self) -> int:
        return self.executions[-1][-1].rows if self.executions and self.executions[-1] else 0

    @property
    def rows_per_second(self) -> float:
        """Of the whole block: waiting included."""
        return self.rows / self.elapsed() if self.elapsed() else 0.0

    @property
    def bytes(self) -> int:
        return sum(operator.bytes for operator in self.operators)

    @property
    def memory_peak(self) -> int:
        return max((stored for _, stored in self.samples), default=0)

    def sample(self) -> None:
        """Note the memory that is used now; of a long run, less and less often."""
        self.samples.append((self.elapsed(), sum(operator.memory for operator in self.operators)))
        if len(self.samples) > _MAX_SAMPLES:
            del self.samples[1::2]

    def to_record(self) -> dict[str, Any]:
        operators = [asdict(operator) for operator in self.operators]
        return {
            "rows": self.rows or None,
            "rows_per_second": self.rows_per_second or None,
            "extra": {"operators": operators, "object_store_peak": self.memory_peak},
        }
