"""Which names a run can have: it is a path in the store, and for Ray Train also a placement group's name."""

import re
import unicodedata

from labkit.errors import LabError

_PART = 255  # bytes of a part between slashes: of a file name on most disks
_WHOLE = 600  # bytes: S3 has 1,024 for a key, and checkpoints add their own folders and files


def check_run_name(name: str, *, only_ascii: bool = True) -> None:
    """Refuse the name of a run that would fail after its start.

    Args:
        only_ascii: as Ray Train needs it (its controller encodes the name as ASCII); Ray Tune does not.

    Raises:
        LabError: it is not ASCII, has control characters, is too long, or has an empty part, "." or "..".
    """
    if problem := _problem(name, only_ascii):
        plain = unicodedata.normalize("NFKD", str(name).replace("ß", "ss")).encode("ascii", "ignore").decode()
        possible = re.sub(r"[^\w=.-]+", "-", plain)[:_PART].strip("-.") or "my-run"
        raise LabError(f"start a run with the name {name!r:.80}", problem, f"RunConfig(name={possible!r})")


def bad_part(path: str) -> bool:
    """Whether a part is empty, "." or "..": HTTP clients take these away, and ask for another object."""
    return not {"", ".", ".."}.isdisjoint(path.split("/"))


def _problem(name: str, only_ascii: bool) -> str:
    if not isinstance(name, str):
        return f"it is of type {type(name).__name__}"
    if only_ascii and not name.isascii():
        return "Ray Train takes ASCII characters only"
    if not name.isprintable():
        return "it has a control character, which not every store can have in a path"
    if bad_part(name):
        return 'the name becomes a path in the store, and a part between slashes is empty, "." or ".."'
    if len(name.encode()) > _WHOLE or max(len(part.encode()) for part in name.split("/")) > _PART:
        return f"it is too long: {_PART} bytes between slashes and {_WHOLE} in all are possible"
    return ""
