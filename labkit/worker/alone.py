"""Notice a worker that trains alone although its group has several.

On CPUs, accelerate and transformers see a single process in a worker of Ray Train, torchrun or
TorchDistributor, unless they are asked to use the CPU. Then each worker trains a model of its own, on all
rows, without a warning.

Two facts together make the note: accelerate believes that it is alone, and no process group has run a
collective between one optimizer step and a much later one. Either one alone may be right: `Accelerator()`
for its precision with a model that Ray has wrapped, or a parameter server. A loop without optimizer steps
is never noted.
"""

import sys

from labkit.worker import group_size


class SoloWatch:
    """Looks at one worker now and then; `look` returns its words once."""

    def __init__(self) -> None:
        self._is_over = False
        self._since: tuple[int, int] | None = None  # steps and collectives when it was looked at first

    def look(self, steps: int, sure: bool) -> list[str]:
        """Return what to say after so many `steps`; `sure`: enough of them were made to say it."""
        if self._is_over or not _accelerate_is_alone():
            return []
        collectives = _collectives()
        if self._since is None:
            self._since = steps, collectives
            return []
        workers = group_size() or 1
        if collectives != self._since[1] or workers < 2:
            self._is_over = True
            return []
        if not sure or steps == self._since[0]:
            return []
        self._is_over = True
        return [
            f"each of the {workers} workers trains a model of its own on all rows: accelerate sees one "
            "process, and no gradients were exchanged. On CPUs, write Accelerator(cpu=True) or "
            'TrainingArguments(use_cpu=True), or set os.environ["ACCELERATE_USE_CPU"] = "true" in the loop '
            "before either is made"
        ]


def _accelerate_is_alone() -> bool:
    """Whether accelerate, which transformers' `Trainer` uses, has looked and seen one process."""
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    shared = getattr(state, "_shared_state", None) or {}
    return shared.get("num_processes") == 1


def _collectives() -> int:
    """How many collectives the process groups of this process have run, from any code."""
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    total = 0
    for group in list(world.pg_map) if world is not None else ():
        try:
            total += group._get_sequence_number_for_group()
        except RuntimeError:  # a backend that doesn't count, such as MPI
            return -1 - total
    return total
