"""Notice a worker that trains alone although its group has several.

On CPUs, accelerate and transformers see a single process in a worker of Ray Train, torchrun or
TorchDistributor, unless they are asked to use the CPU. Then each worker trains a model of its own, on all
rows, without a warning.

Two facts together make the note: accelerate believes that it is alone, and no process group has run a
collective between the first optimizer step and the last of the first two epochs. Either fact may be right by
itself: `Accelerator()` for its precision with a model that Ray has wrapped, or a parameter server. A loop
without optimizer steps is never noted.
"""

import sys

from labkit.worker import group_size


class SoloWatch:
    """Looks on at the optimizer steps of one worker; `look` returns its words once."""

    def __init__(self) -> None:
        self.has_spoken = False
        self.is_on = False  # whether `stepped` is of use: in most loops it is not
        self._has_stepped = False  # since it looks on
        self._collectives = 0

    def begin(self) -> None:
        """Look on from here, if there is a group and accelerate sees only this process."""
        if _accelerate_is_alone() and (group_size() or 1) > 1:
            self.is_on = True
            self._collectives = collectives()

    def stepped(self) -> None:
        """Count a step. What is exchanged after the last one, such as a metric, trains nothing."""
        if collectives() != self._collectives:
            self.is_on = False
        self._has_stepped = True

    def look(self) -> list[str]:
        """Return what to say when enough steps were made to say it, if anything."""
        if not self.is_on or not self._has_stepped:
            return []
        self.is_on = False
        self.has_spoken = True
        return [
            f"each of the {group_size()} workers trains a model of its own on all rows: accelerate sees one "
            "process, and no gradients were exchanged. On CPUs, write Accelerator(cpu=True) or "
            'TrainingArguments(use_cpu=True), or set os.environ["ACCELERATE_USE_CPU"] = "true" in the loop '
            "before either is made"
        ]


def _accelerate_is_alone() -> bool:
    """Return whether accelerate, which transformers' `Trainer` uses, has looked and seen one process."""
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    shared = getattr(state, "_shared_state", None) or {}
    return shared.get("num_processes") == 1


def collectives() -> int:
    """Return how many collectives the process groups of this process have run, from any code."""
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    total = 0
    for group in list(world.pg_map) if world is not None else ():
        try:
            total += group._get_sequence_number_for_group()
        except RuntimeError:  # a backend that doesn't count, such as MPI
            return -1 - total
    return total
