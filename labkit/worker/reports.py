"""Say at the report what Ray refuses or changes in the metrics of a checkpoint, and the line to write.

Ray writes these metrics as JSON, with pydantic, in the run's controller. What that can't write ends the run
there, and the error names neither the metric nor a line of the loop. Of NumPy, it takes `float64`, which is a
float, and nothing else. Other values change: a run that resumes, and `Result.from_path`, read them from JSON.
"""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from labkit.errors import BadInput


class Reports:
    """The reports with checkpoints of one loop, on the rank whose metrics Ray keeps."""

    def __init__(self) -> None:
        self._folders: dict[str, int] = {}  # names of checkpoints' folders, and the number of the report
        self._repeated: set[str] = set()  # of them, those that were spoken of
        self._changed: set[str] = set()  # metrics that were spoken of
        self._reports = 0

    def notes_on(self, metrics: Any, folder: str | None) -> Iterator[str]:
        """Yield what the reader should know of a report with a checkpoint in `folder`.

        Raises:
            BadInput: Ray would end the run for a metric that it can't write.
        """
        self._reports += 1
        if "pydantic_core" in sys.modules and isinstance(metrics, Mapping):
            refuse_what_json_lacks(metrics)
            for path, value, kept in _changes(metrics):
                if path not in self._changed:
                    self._changed.add(path)
                    yield _sentence(path, value, kept)
        if folder is None:
            return
        if folder in self._folders and folder not in self._repeated:
            self._repeated.add(folder)
            yield (
                f"report {self._reports} has the same checkpoint_dir_name={folder!r} as report "
                f"{self._folders[folder]} ({_place()}): their files are in one folder, which is deleted "
                'with the older one. Give each its own name, such as checkpoint_dir_name=f"epoch-{epoch}"'
            )
        self._folders.setdefault(folder, self._reports)


def _sentence(path: str, value: Any, kept: Any) -> str:
    is_collection = isinstance(value, (tuple, set, frozenset))
    shown = type(value).__name__ if is_collection else repr(value)
    fact = f"the metric {path} is {shown} in {_place()}, and Ray's copy of it, as JSON, has {_brief(kept)}"
    if kept is None:
        return f"{fact}: a run that resumes finds no number there. Report a large number instead"
    return f"{fact}. Report {_brief(kept)} yourself, so that both are the same"


def _brief(value: Any) -> str:
    """Return a value as the sentence shows it."""
    text = repr(value)
    return text if len(text) <= 40 else f"a {type(value).__name__}"


def _place() -> str:
    """Return the line that reports: the innermost one that is neither Ray's nor the lab's."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in ("ray", "labkit"):
            path = frame.f_code.co_filename.replace("\\", "/")
            return f"line {frame.f_lineno} of {path.rpartition('/')[2]}"
        frame = frame.f_back
    return "the loop"


# -- what changes --------------------------------------------------------------------------------------------


def _changes(metrics: Mapping) -> Iterator[tuple[str, Any, Any]]:
    """Yield each metric that comes back from JSON as something else: its name, its value, and that."""
    pydantic = sys.modules["pydantic_core"]
    try:
        kept = pydantic.from_json(pydantic.to_json(metrics, inf_nan_mode="null"))
    except ValueError:  # Ray ends the run with an error of its own
        return
    yield from _differences(metrics, kept, "")


def _differences(value: Any, kept: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(value, Mapping) and isinstance(kept, Mapping):
        for (name, part), (kept_name, kept_part) in zip(value.items(), kept.items(), strict=False):
            if name != kept_name:
                yield f"{path}, a key of it,".lstrip(", "), name, kept_name
            yield from _differences(part, kept_part, _path_of(name, path))
    elif isinstance(value, list) and isinstance(kept, list):
        for place, (part, kept_part) in enumerate(zip(value, kept, strict=False)):
            yield from _differences(part, kept_part, f"{path}[{place}]")
    elif not _is_same(value, kept):
        yield path, value, kept


def _is_same(value: Any, kept: Any) -> bool:
    with contextlib.suppress(Exception):  # a metric may be anything
        return bool(value == kept)
    return False


# -- what is refused -----------------------------------------------------------------------------------------


def refuse_what_json_lacks(metrics: Mapping) -> None:
    """Refuse metrics of a checkpoint that Ray can't keep: in its controller that ends the run, unnamed."""
    if _is_kept(metrics):
        return
    for path, value, is_key in _leaves(metrics, ""):
        if not _is_kept(value):
            what = f"its key {value!r}" if is_key else "it"
            fact = f"{what} is a {_type_of(value)}, and Ray keeps the metrics of a checkpoint as JSON"
            fix = "make the key a str or an int" if is_key else _json_fix(path, value)
            raise BadInput(f"report the metric {path}" if path else "report the metrics", fact, fix)


def _type_of(value: Any) -> str:
    """Return a value's type as the reader knows it: ``numpy.ndarray of shape (3,)``."""
    cls = type(value)
    package = cls.__module__.partition(".")[0]
    name = f"{package}.{cls.__name__}"
    shape = getattr(value, "shape", None)
    return f"{name} of shape {tuple(shape)}" if shape else name


def _json_fix(path: str, value: Any) -> str:
    convert = "str(value)"
    if getattr(value, "shape", None):
        convert = "value.tolist()"
    else:
        with contextlib.suppress(Exception):
            float(value)
            convert = "float(value)"
    is_nested = path.endswith("]")
    fix = f"make it {convert} where the metric is made" if is_nested else f"report {{{path}: {convert}}}"
    return fix if convert == "float(value)" else f"{fix}, or save it in the checkpoint's folder"


def _is_kept(value: Any) -> bool:
    try:
        sys.modules["pydantic_core"].to_json(value)
    except Exception:
        return False
    return True


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any, bool]]:
    """Yield the values in nested metrics, each with its names; and with True, keys that are no texts."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            if not isinstance(name, str):
                yield path, name, True
            yield from _leaves(part, _path_of(name, path))
    elif isinstance(value, (list, tuple, set, frozenset)):
        for place, part in enumerate(value):
            yield from _leaves(part, f"{path}[{place}]")
    else:
        yield path, value, False


def _path_of(name: Any, path: str) -> str:
    """Return the path of the value `name` in the metrics at `path`."""
    return f"{path}[{name!r}]" if path else repr(name)
