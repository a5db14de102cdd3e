"""Run a past training again, as far as its record can tell how.

>>> again = runs.rerun("20260131-120000-a1b2c3")
>>> again                            # says what the record could not restore
>>> trainer = TorchTrainer(again.loop, train_loop_config=again.config | {"lr": 0.2},
...                        scaling_config=ScalingConfig(**again.scaling), ...)
"""

import ast
import builtins
import linecache
import symtable
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.machine import installed_versions
from labkit.runs.browse import get
from labkit.runs.origin import SECRET, git_commit
from labkit.runs.record import RunRecord


@dataclass(frozen=True)
class Rerun:
    """What `rerun` restored. Displays itself: what it could not restore.

    Attributes:
        record: of the earlier run.
        loop: the training function, or the trainable class; None if the record has none.
        config: its settings, without those that the record has not in full.
        scaling: arguments of `ray.train.ScalingConfig`.
        missing: a sentence for each thing that the record could not restore.
    """

    record: RunRecord
    loop: Callable[..., Any] | None
    config: dict[str, Any]
    scaling: dict[str, Any]
    missing: list[str]

    def __repr__(self) -> str:
        head = f"{self.record.name} · {self.record.run_id}: not restored"
        return "\n- ".join([head, *self.missing])


def rerun(run: str | RunRecord, *, home: Path | str | None = None) -> Rerun:
    """Restore the training function, the settings and the scaling of a run. Nothing is trained.

    The function is defined again from the text in the record, so its decorators and default values are
    computed. Only do this with records that you trust. What the function finds outside of itself (modules,
    models, a panel) is what your notebook or script has when it runs.

    Args:
        run: its id, or its record.

    Raises:
        RunError: there is no such run.
    """
    record = get(run, home)
    loop, missing = _loop(record)
    if SECRET in record.code:
        missing.append(f"secrets in its code: it has {SECRET!r} in their place")
    config, scaling = (one if isinstance(one, dict) else {} for one in (record.config, record.scaling))
    missing += [f"config[{name!r}]: the record has only {config.get(name)!r}" for name in record.abridged]
    if record.called:
        missing.append("what its function calls is what you have now: .record.called has what it was")
    if record.seed is None:
        missing.append("its seed: the record has none")
    data = [f"{record.dataset}" if record.dataset else "", record.data_fingerprint or ""]
    missing.append(f"its data{': ' * any(data)}{' '.join(filter(None, data))}, callbacks and checkpoints")
    now = {**installed_versions(), "commit": git_commit()}
    then = {**record.versions, "commit": record.commit}
    missing += [
        f"{name} {value}: here it is {now.get(name)}"
        for name, value in then.items()
        if value not in (None, now.get(name))
    ]
    config = {name: value for name, value in config.items() if name not in record.abridged}
    scaling = {name: value for name, value in scaling.items() if value is not None}
    return Rerun(record, loop, config, scaling, missing)


def _loop(record: RunRecord) -> tuple[Callable[..., Any] | None, list[str]]:
    """The function or class of a record's code, with the notebook's globals, or why there is none."""
    if not record.code:
        return None, ["its code: the record has none"]
    file = f"<run {record.run_id}>"
    try:
        body = ast.parse(record.code).body
        if len(body) != 1 or not isinstance(body[0], (ast.FunctionDef, ast.ClassDef)):
            return None, ["its training function: .record.code is all that is in the cell or script"]
        # So that tracebacks, and the record of the new run, find the text.
        linecache.cache[file] = len(record.code), None, record.code.splitlines(keepends=True), file
        own: dict[str, Any] = {}  # it must not replace a function of the same name in the notebook
        scope = vars(sys.modules["__main__"])
        exec(compile(record.code, file, "exec"), scope, own)
    except Exception as error:  # of a decorator, a default value, a base class
        return None, [f"its training function: {type(error).__name__}: {error}"]
    unknown = _globals(symtable.symtable(record.code, file, "exec")) - scope.keys() - set(dir(builtins))
    lacks = f"what it uses: {', '.join(sorted(unknown))}; import or define them, then rerun"
    return own[body[0].name], [lacks] if unknown else []


def _globals(table: symtable.SymbolTable) -> set[str]:
    """The global names that some code uses."""
    used = {
        symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced()
    }
    return used.union(*map(_globals, table.get_children()))
