"""Read the files of a class. Anybody may have written them: one that isn't as expected is refused."""

import json
import time
from collections import Counter
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from course.classroom.place import LIMIT, Bucket, Folder
from labkit.display.formatting import short

_MOST = 300  # entries of one kind
_TEXT = {"type": "string"}
_NUMBER = {"type": "number", "minimum": 0, "exclusiveMaximum": 1e12}
_TEXTS = {
    "type": "array",
    "maxItems": _MOST,
    "items": _TEXT,
}
_NUMBERS = {
    "type": "object",
    "maxProperties": _MOST,
    "additionalProperties": _NUMBER,
}
_SECTION = {
    "type": "object",
    "required": ["name", "minutes"],
    "properties": {"name": _TEXT, "minutes": _NUMBER},
}
_PARTS = {
    "nickname": _TEXT,
    "at": _TEXT,
    "solved": _TEXTS,
    "hints": _NUMBERS,
    "predictions": _NUMBERS | {"additionalProperties": _TEXT},
    "minutes": _NUMBERS,
    "section": _SECTION,
    "runs": _NUMBERS | {"additionalProperties": _NUMBERS},
    "doctor": _TEXTS,
}
_ASKS = {"asks": {"type": "boolean"}}  # whether the learner asks for help; older files have no such field
_SCHEMA = {"type": "object", "required": [*_PARTS], "properties": _PARTS | _ASKS}


class Learner(SimpleNamespace):
    """The content of one file, by the names of `_PARTS`. Its texts are short, without control characters.

    Attributes:
        file: its name.
        asks: whether the learner asks for help.
        name: the nickname, and the beginning of the file's name where several have the same nickname.
        seen: minutes since it was written, by the clock of the place.
    """

    @property
    def there(self) -> float:
        """Minutes in the present section: up to the last cell, and since then."""
        if not self.section["name"]:
            return 0.0
        return self.section["minutes"] + self.seen


def read(place: Folder | Bucket) -> tuple[list[Learner], list[tuple[str, str]]]:
    """Return the learners by nickname, and (file, reason) of each file that is refused.

    Raises:
        OSError: the place cannot be read; for a bucket, also botocore's errors.
    """
    from jsonschema import ValidationError

    learners = []
    refused = []
    for file, content, written in place.read():
        try:
            learners.append(_learner(file, content, max(time.time() - written, 0) / 60))
        except RecursionError:
            refused.append((file, "it is nested too deeply"))
        except (ValueError, ValidationError) as error:
            refused.append((file, _printable(getattr(error, "message", str(error)))))
    names = Counter(learner.name.casefold() for learner in learners)
    for learner in learners:
        if names[learner.name.casefold()] > 1:
            learner.name = f"{learner.name} · {learner.file[:4]}"
    return sorted(learners, key=lambda learner: learner.name.casefold()), refused


def _learner(file: str, content: bytes | str, seen: float) -> Learner:
    from jsonschema import Draft202012Validator

    if isinstance(content, str):
        raise ValueError(content)
    if len(content) > LIMIT:
        raise ValueError(f"it has more than {LIMIT // 1024} KiB")
    parts = json.loads(content, parse_constant=_refuse)
    Draft202012Validator(_SCHEMA).validate(parts)
    datetime.fromisoformat(parts["at"])
    return Learner(
        file=file,
        name=_printable(parts["nickname"], 40) or "(no name)",
        seen=seen,
        asks=parts.get("asks", False),
        **{part: _clean(parts[part]) for part in _PARTS},
    )


def _refuse(constant: str) -> None:
    raise ValueError(f"a number is expected where it has {constant}")


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {_printable(name): _clean(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, str):
        return _printable(value)
    return value


def _printable(text: str, most: int = 80) -> str:
    # What isn't printable could turn the direction of the text around it, or not be UTF-8.
    return short("".join(sign if sign.isprintable() else " " for sign in text[: 10 * most]), most)
