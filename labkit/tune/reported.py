"""What Tune makes of the names and numbers that a trial reports.

`names_of_tune` reads the text of a trainable, because a trial's own value of such a name never reaches the
panel: it looks at the dicts that are written out in ``tune.report({…})``, or returned by ``step``.
"""

import ast
import inspect
import math
import textwrap
from collections.abc import Iterator
from typing import Any

_OVERWRITTEN = {
    "config",
    "date",
    "hostname",
    "iterations_since_restore",
    "node_ip",
    "pid",
    "time_since_restore",
    "time_total_s",
    "trial_id",
}
_REPLACED = (
    "the 'training_iteration' that {} replaces Tune's count of reports, by which schedulers and "
    "RunConfig(stop=…) end trials: report it by another name, such as 'epoch'"
)


def names_of_tune(trainable: Any) -> list[str]:
    """Return a sentence for each name that a trainable reports, and that Tune uses itself."""
    trainable = inspect.unwrap(trainable) if callable(trainable) else trainable
    try:
        lines, first = inspect.getsourcelines(trainable)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        file = inspect.getsourcefile(trainable) or ""
    except (OSError, TypeError, SyntaxError):  # it has no text, or is a name
        return []
    is_class = isinstance(trainable, type)
    seen: dict[str, int] = {}
    reports = _dicts_of_steps(tree) if is_class else _dicts_of_calls(tree)
    for reported in reports:
        for key in reported.keys:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                seen.setdefault(key.value, first + key.lineno - 1)
    if "ipykernel" in file:
        file = "the notebook"
    else:
        file = file.replace("\\", "/").rpartition("/")[2]
    sentences = []
    for name, line in seen.items():
        sentence = _sentence(name, f"line {line} of {file}", is_class)
        if sentence:
            sentences.append(sentence)
    return sentences


def _dicts_of_calls(tree: ast.AST) -> Iterator[ast.Dict]:
    """Yield the dicts in ``report({…})`` and ``report(metrics={…})``, by whatever module's name."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or ast.unparse(call.func).rpartition(".")[2] != "report":
            continue
        values = call.args[:1]
        values += [keyword.value for keyword in call.keywords if keyword.arg == "metrics"]
        for value in values:
            if isinstance(value, ast.Dict):
                yield value


def _dicts_of_steps(tree: ast.AST) -> Iterator[ast.Dict]:
    """Yield the dicts that the method ``step`` returns."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name == "step":
            for part in ast.walk(function):
                if isinstance(part, ast.Return) and isinstance(part.value, ast.Dict):
                    yield part.value


def _sentence(name: str, place: str, is_class: bool) -> str:
    if name in _OVERWRITTEN:
        return f"Tune overwrites the {name!r} that {place} reports with its own: report it by another name"
    if name == "training_iteration":
        return _REPLACED.format(f"{place} reports")
    if name == "done" and not is_class:  # a class ends its trial so
        return (
            f"Tune ends a trial as soon as the 'done' that {place} reports is true or not 0: report it by "
            "another name, or return from the function where the trial should end"
        )
    return ""


class Iterations:
    """Notices a trial that reports `training_iteration` itself, whatever its text looks like."""

    def __init__(self) -> None:
        # By trial: Tune's count in this process, and by how much the report differs from it.
        self._latest: dict[str, tuple[int, float]] = {}

    def note_on(self, trial: str, result: dict[str, Any]) -> str:
        """Return what to say of a result, "" if its `training_iteration` is Tune's.

        Both counts grow by one with each report, until a trial goes on from a checkpoint.
        """
        count = result.get("iterations_since_restore")
        reported = result.get("training_iteration")
        if not isinstance(count, int) or not isinstance(reported, (int, float)):
            return ""
        offset = reported - count
        count_before, offset_before = self._latest.get(trial, (None, 0))
        self._latest[trial] = count, offset
        has_jumped = count_before == count - 1 and offset_before != offset
        if offset < 0 or has_jumped:
            return _REPLACED.format("trials report")
        return ""


def not_finite(metric: str, value: Any, trial: int) -> str:
    """Return what to say of a metric by which trials are compared, "" if it is a number."""
    if not isinstance(value, float) or math.isfinite(value):
        return ""
    return (
        f"trial {trial} reported {metric}={value}: Tune ranks no such result, and forgets for "
        'get_best_result(scope="all") what this trial reported before. Report the worst number that is '
        "possible instead"
    )
