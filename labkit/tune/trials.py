"""Read what Tune knows of a trial: its configuration, its results, how it ended, why it failed."""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import ray
from ray import cloudpickle
from ray.tune.result import AUTO_RESULT_KEYS

from labkit.display import tracebacks
from labkit.settings import NODE_NAME
from labkit.tune.state import flat

STATUS = {"PENDING": "waiting", "RUNNING": "running", "PAUSED": "paused", "TERMINATED": "finished"}
_TUNES = {*AUTO_RESULT_KEYS, "done", "trial_id", "experiment_tag", "should_checkpoint"}
NO_RESET = "reset_config did not return True"
_NOT_RESET = "reuse requires reset_config()"  # how Tune says it


def shown(config: dict[str, Any]) -> dict[str, Any]:
    """A trial's configuration as the panel shows it: flat, and without what is no number, word or choice."""
    kept = {}
    for name, value in flat(config).items():
        plain = number(value)
        if plain is not None and not isinstance(value, bool):
            kept[name] = plain
        elif value is None or isinstance(value, (bool, str, tuple, list)):
            kept[name] = value
    return kept


def own_names(result: dict[str, Any]) -> set[str]:
    """The names in a result that are the trainable's own, and not Tune's."""
    return {name for name in result if name not in _TUNES and not name.startswith(("_", "config/"))}


def place_of(trial_id: str) -> int | None:
    """Tune's ids end in the order of creation, ``3ce1a_00007``; a searcher's own ids do not."""
    found = re.fullmatch(r"[0-9a-f]+_(\d{5,})", trial_id)
    return int(found[1]) if found else None


def names_in(message: str) -> list[str]:
    """The trainable's own names in what Tune says of a result that lacks a metric."""
    return sorted(own_names(dict.fromkeys(re.findall(r"'([^']+)':", message.rpartition("Result: ")[2]))))


def number(value: Any) -> Any:
    """A plain number out of numpy's and torch's; None for all else."""
    if isinstance(value, (bool, int, float)) and not hasattr(value, "item"):
        return value
    with contextlib.suppress(Exception):
        plain = value.item()
        return plain if isinstance(plain, (bool, int, float)) else None
    return None


def end_of(
    trial: Any, result: dict[str, Any], *, rungs: Sequence[int], longest: float | None
) -> tuple[str, str]:
    """(status, why), if `result` was the trial's last.

    Args:
        rungs: where the scheduler compares trials.
        longest: iterations after which the scheduler ends any trial.
    """
    iteration = result.get("training_iteration", 0)
    for name, limit in trial.stopping_criterion.items():
        value = result.get(name)
        if isinstance(value, (int, float)) and value >= limit:
            why = _iterations(iteration) if name == "training_iteration" else f"{name} ≥ {limit:g}"
            return "finished", why
    if longest is not None and iteration >= longest:
        return "finished", _iterations(iteration)
    if result.get("done") and iteration in rungs:
        return "stopped early", f"stopped at rung {iteration}"
    return "finished", ""


def _iterations(count: int) -> str:
    return f"{count} iteration{'s' * (count != 1)}"


def why_failed(trial: Any) -> str:
    """The short traceback of a trial that failed, or why it has none."""
    error, text = None, ""
    with contextlib.suppress(Exception):
        text = Path(trial.error_file).read_text(errors="replace").rpartition("Failure #")[2]
    with contextlib.suppress(Exception):
        error = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
        text = str(error)
    if _NOT_RESET in text:
        return f"RuntimeError: {NO_RESET}"
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return f"OutOfMemoryError: {_first_line(text)}"
    if isinstance(error, ray.exceptions.RayActorError) and not error.__cause__:
        return f"{type(error).__name__}: its process is gone: killed, most likely for its memory (OOM)"
    return tracebacks.shorten_text(text) if text else "no error was kept"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:300]


class Nodes:
    """The lab's names of the nodes that trials run on."""

    def __init__(self) -> None:
        self._names: dict[tuple, str] = {}

    def name(self, result: dict[str, Any]) -> str:
        """The lab's name of the node that sent `result`; its address where it is another machine."""
        where = (result.get("node_ip", ""), result.get("pid", 0))
        if where not in self._names:
            name = where[0]
            with contextlib.suppress(psutil.Error, ValueError, TypeError):
                if name == ray.util.get_node_ip_address():
                    name = psutil.Process(where[1]).environ().get(NODE_NAME, name)
            self._names[where] = name
        return self._names[where]
