"""Which names a run can have: those that the store and Ray carry unchanged.

A name is a path in the store. For Ray Train it is also the name of a placement group, which has to be ASCII:
otherwise the controller fails with "'ascii' codec can't encode characters" (Ray 2.60).
"""

import re
import unicodedata

from labkit.errors import LabError

_PART = 255  # bytes: of a file name on most disks, and so of a part in the embedded store
_WHOLE = 600  # bytes: S3 has 1,024 for a key, and checkpoints add their own folders and files


def check_run_name(name: str, *, only_ascii: bool = True) -> None:
    """Refuse the name of a run that would fail after its start.

    Args:
        only_ascii: as Ray Train needs it; Ray Tune does not.

    Raises:
        LabError: it is not ASCII, has control characters, is too long, or has an empty part, "." or "..".
    """
    problem = _problem(name, only_ascii) if isinstance(name, str) else f"it is of type {type(name).__name__}"
    if problem:
        fix = f"RunConfig(name={_allowed(str(name))!r})"
        raise LabError(f"start a run with the name {name!r:.80}", problem, fix)


def bad_part(path: str) -> bool:
    """Whether a part between slashes is empty, "." or "..".

    HTTP clients and servers take these away, so a request for such an object asks for another one, or hangs.
    """
    return not {"", ".", ".."}.isdisjoint(path.split("/"))


def _problem(name: str, only_ascii: bool) -> str:
    parts = name.split("/")
    if only_ascii and not name.isascii():
        strange = next(one for one in name if not one.isascii())
        return f"Ray Train takes ASCII characters only, and the name has {strange!r}"
    if not name.isprintable():
        strange = next(one for one in name if not one.isprintable())
        return f"the name has {strange!r}, which not every store can have in a path"
    if bad_part(name):
        return 'the name becomes a path in the store, and a part between slashes is empty, "." or ".."'
    size = len(name.encode())
    if max(len(part.encode()) for part in parts) > _PART or size > _WHOLE:
        return f"it has {size} bytes; {_PART} between slashes and {_WHOLE} in all are possible"
    return ""


def _allowed(name: str) -> str:
    """The most similar name that can be used."""
    ascii_only = unicodedata.normalize("NFKD", name.replace("ß", "ss")).encode("ascii", "ignore").decode()
    parts = [re.sub(r"[^ -~]", "_", part)[:_PART].strip() for part in ascii_only.split("/")]
    whole = "/".join(part for part in parts if part not in ("", ".", ".."))[:_WHOLE]
    return whole.rstrip("/") or "my-run"
