"""Read the files of a class. Each may come from anybody: one that isn't as the lab writes it is refused."""

import json
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from labkit.classroom.place import LIMIT, Bucket, Folder
from labkit.display import formatting

_MOST = 300  # entries of one kind


@dataclass(frozen=True)
class Learner:
    """What one file says, checked. Texts are short and have no control characters.

    Attributes:
        name: the nickname, and the beginning of the file's name where several have the same nickname.
        at: when the file was put together, by the clock of the learner's machine (ISO 8601).
        seen: minutes since it was written, by the clock of the place.
        hints: exercise → how many.
        minutes: section → minutes.
        section, there: where the learner was last, and the minutes from the first to the last cell there.
        runs: name → "workers", "rows/s", and "speed-up" where it is known.
        doctor: topics that need a fix on that machine.
    """

    name: str
    at: str
    seen: float
    solved: list[str]
    hints: dict[str, float]
    predictions: dict[str, str]
    minutes: dict[str, float]
    section: str
    there: float
    runs: dict[str, dict[str, float]]
    doctor: list[str]


def read(place: Folder | Bucket) -> tuple[list[Learner], list[tuple[str, str]]]:
    """Everybody by nickname; and (file, why) of each file that is refused.

    Raises:
        OSError: the place cannot be read; for a bucket, also botocore's errors.
    """
    found, refused = [], []
    for file, content, written in place.read():
        try:
            if isinstance(content, str):
                raise ValueError(content)
            found.append((file, _learner(content, max(time.time() - written, 0) / 60)))
        except RecursionError:
            refused.append((_text(file), "it is nested too deeply"))
        except (ValueError, TypeError, KeyError) as error:
            refused.append((_text(file), _text(f"{error}", 80)))
    names = [one.name.casefold() for _, one in found]
    for file, one in found:
        if names.count(one.name.casefold()) > 1:
            object.__setattr__(one, "name", f"{one.name} · {_text(file, 5)}")
    return sorted((one for _, one in found), key=lambda one: one.name.casefold()), refused


def _learner(content: bytes, seen: float) -> Learner:
    if len(content) > LIMIT:
        raise ValueError(f"it has more than {formatting.size(LIMIT)}")
    said = _dict(json.loads(content))
    at, section = _text(said["at"]), _dict(said["section"])
    datetime.fromisoformat(at)
    return Learner(
        name=_text(said["nickname"]) or "(no name)",
        at=at,
        seen=seen,
        solved=[_text(id) for id in _list(said["solved"])],
        hints=_numbers(said["hints"]),
        predictions={_text(id): _text(verdict) for id, verdict in _dict(said["predictions"]).items()},
        minutes=_numbers(said["minutes"]),
        section=_text(section["name"], 80),
        there=_number(section["minutes"]),
        runs={_text(name): _numbers(figures) for name, figures in _dict(said["runs"]).items()},
        doctor=[_text(topic) for topic in _list(said["doctor"])],
    )


def _text(value: Any, most: int = 40) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text is expected where it has {type(value).__name__}")
    # What isn't printable could turn the direction of the text around it, or not be UTF-8.
    return formatting.short("".join(one if one.isprintable() else " " for one in value[: 10 * most]), most)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        raise ValueError(f"a number is expected where it has {formatting.short(repr(value), 20)}")
    return float(value)


def _numbers(value: Any) -> dict[str, float]:
    return {_text(name, 80): _number(one) for name, one in _dict(value).items()}


def _dict(value: Any) -> dict[str, Any]:
    return _limited(value, dict)


def _list(value: Any) -> list[Any]:
    return _limited(value, list)


def _limited(value: Any, kind: type) -> Any:
    if not isinstance(value, kind) or len(value) > _MOST:
        raise TypeError(
            f"a {kind.__name__} of at most {_MOST} is expected where it has {type(value).__name__}"
        )
    return value
