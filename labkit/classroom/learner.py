"""Read the files of a class. Each may come from anybody: one that isn't as the lab writes it is refused."""

import json
import time
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from labkit.classroom.place import LIMIT, Bucket, Folder
from labkit.display import formatting

_MOST = 300  # entries of one kind
_TEXT = {"type": "string"}
_NUMBER = {"type": "number", "minimum": 0, "exclusiveMaximum": 1e12}


def _several(kind: dict) -> dict:
    return {"type": "object", "maxProperties": _MOST, "additionalProperties": kind}


_TEXTS = {"type": "array", "maxItems": _MOST, "items": _TEXT}
_FILE = {
    "nickname": _TEXT,
    "at": _TEXT,
    "solved": _TEXTS,
    "hints": _several(_NUMBER),
    "predictions": _several(_TEXT),
    "minutes": _several(_NUMBER),
    "section": {
        "type": "object",
        "required": ["name", "minutes"],
        "properties": {"name": _TEXT, "minutes": _NUMBER},
    },
    "runs": _several(_several(_NUMBER)),
    "doctor": _TEXTS,
}


class Learner(SimpleNamespace):
    """What one file says, by the names of `_FILE`, checked. Texts are short and have no control characters.

    Attributes:
        name: the nickname, and the beginning of the file's name where several have the same nickname.
        seen: minutes since it was written, by the clock of the place.
    """


def read(place: Folder | Bucket) -> tuple[list[Learner], list[tuple[str, str]]]:
    """Everybody by nickname; and (file, why) of each file that is refused.

    Raises:
        OSError: the place cannot be read; for a bucket, also botocore's errors.
    """
    from jsonschema import ValidationError

    found, refused = [], []
    for file, content, written in place.read():
        try:
            if isinstance(content, str):
                raise ValueError(content)
            found.append((file, _learner(content, max(time.time() - written, 0) / 60)))
        except RecursionError:
            refused.append((_text(file), "it is nested too deeply"))
        except (ValueError, ValidationError) as error:
            refused.append((_text(file), _text(getattr(error, "message", str(error)))))
    names = [one.name.casefold() for _, one in found]
    for file, one in found:
        if names.count(one.name.casefold()) > 1:
            one.name = f"{one.name} · {_text(file, 5)}"
    return sorted((one for _, one in found), key=lambda one: one.name.casefold()), refused


def _learner(content: bytes, seen: float) -> Learner:
    from jsonschema import Draft202012Validator

    if len(content) > LIMIT:
        raise ValueError(f"it has more than {formatting.size(LIMIT)}")
    said = json.loads(content, parse_constant=_refuse)
    Draft202012Validator({"type": "object", "required": [*_FILE], "properties": _FILE}).validate(said)
    datetime.fromisoformat(said["at"])
    name = _text(said["nickname"], 40) or "(no name)"
    return Learner(name=name, seen=seen, **{key: _clean(said[key]) for key in _FILE})


def _refuse(constant: str) -> None:
    raise ValueError(f"a number is expected where it has {constant}")


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {_text(name): _clean(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_clean(one) for one in value]
    return _text(value) if isinstance(value, str) else value


def _text(value: str, most: int = 80) -> str:
    # What isn't printable could turn the direction of the text around it, or not be UTF-8.
    return formatting.short("".join(one if one.isprintable() else " " for one in value[: 10 * most]), most)
