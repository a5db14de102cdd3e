"""Read the files of a class. Anybody may have written them: one that isn't as expected is refused."""

import json
import time
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from course.classroom.place import LIMIT, Bucket, Folder

_MOST = 300  # entries of one kind
_TEXT = {"type": "string"}
_NUMBER = {"type": "number", "minimum": 0, "exclusiveMaximum": 1e12}
_TEXTS = {"type": "array", "maxItems": _MOST, "items": _TEXT}
_NUMBERS = {"type": "object", "maxProperties": _MOST, "additionalProperties": _NUMBER}
_SECTION: dict[str, Any] = {"type": "object", "required": ["name", "minutes"]}
_SECTION["properties"] = {"name": _TEXT, "minutes": _NUMBER}
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
_SCHEMA = {"type": "object", "required": [*_PARTS], "properties": _PARTS}


class Learner(SimpleNamespace):
    """What one file says, by the names of `_PARTS`. Its texts are short and have no control characters.

    Attributes:
        file: its name.
        name: the nickname, and the beginning of the file's name where several have the same nickname.
        seen: minutes since it was written, by the clock of the place.
    """

    @property
    def there(self) -> float:
        """Minutes in the present section: up to the last cell, and since then."""
        return self.section["minutes"] + self.seen if self.section["name"] else 0.0


def read(place: Folder | Bucket) -> tuple[list[Learner], list[tuple[str, str]]]:
    """Everybody by nickname; and (file, why) of each file that is refused.

    Raises:
        OSError: the place cannot be read; for a bucket, also botocore's errors.
    """
    from jsonschema import ValidationError

    found, refused = [], []
    for file, content, written in place.read():
        try:
            found.append(_learner(file, content, max(time.time() - written, 0) / 60))
        except RecursionError:
            refused.append((file, "it is nested too deeply"))
        except (ValueError, ValidationError) as error:
            refused.append((file, _short(getattr(error, "message", str(error)))))
    names = [one.name.casefold() for one in found]
    for one in found:
        if names.count(one.name.casefold()) > 1:
            one.name = f"{one.name} · {one.file[:4]}"
    return sorted(found, key=lambda one: one.name.casefold()), refused


def _learner(file: str, content: bytes | str, seen: float) -> Learner:
    from jsonschema import Draft202012Validator

    if isinstance(content, str):
        raise ValueError(content)
    if len(content) > LIMIT:
        raise ValueError(f"it has more than {LIMIT // 1024} KiB")
    said = json.loads(content, parse_constant=_refuse)
    Draft202012Validator(_SCHEMA).validate(said)
    datetime.fromisoformat(said["at"])
    name = _short(said["nickname"], 40) or "(no name)"
    return Learner(file=file, name=name, seen=seen, **{part: _clean(said[part]) for part in _PARTS})


def _refuse(constant: str) -> None:
    raise ValueError(f"a number is expected where it has {constant}")


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {_short(name): _clean(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_clean(one) for one in value]
    return _short(value) if isinstance(value, str) else value


def _short(text: str, most: int = 80) -> str:
    # What isn't printable could turn the direction of the text around it, or not be UTF-8.
    line = " ".join("".join(one if one.isprintable() else " " for one in text[: 10 * most]).split())
    return line if len(line) <= most else line[: most - 1] + "…"
