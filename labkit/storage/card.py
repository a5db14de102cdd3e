"""What an object store holds, in a line and as a card."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from labkit.display.style import STYLE
from labkit.errors import StorageError

_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """What is in a bucket.

    Attributes:
        objects, bytes: how many, and their size together.
        more: whether there are more than were counted.
    """

    name: str
    objects: int
    bytes: int
    more: bool = False


def summary(buckets: Sequence[Bucket]) -> str:
    """ "2 buckets, 1,437 objects, 0.6 MB"."""
    objects, size = sum(b.objects for b in buckets), sum(b.bytes for b in buckets)
    more = " or more" if any(b.more for b in buckets) else ""
    return f"{len(buckets)} bucket{'s' * (len(buckets) != 1)}, {objects:,} objects{more}, {_size(size)}"


def draw(where: str, whose: str, found: Sequence[Bucket] | StorageError | None) -> str:
    """The card as HTML.

    Args:
        where: the endpoint.
        whose: "the lab's own, rclone".
        found: the buckets, why they are not known, or None for a store that was stopped.
    """
    if found is None:
        word, below = '<span class="lk-dim">stopped</span>', ""
    elif isinstance(found, StorageError):
        word, below = '<span class="lk-bad">✕ not usable</span>', escape(f"{found.fact}; {found.fix}")
    else:
        word, below = '<span class="lk-ok">running</span>', _table(found)
    below = below and f'<div class="lk-rule lk-text">{below}</div>'
    return (
        f'{STYLE}<div class="labkit lk-card"><div class="lk-head"><b>Object store</b>{word}'
        f'<span class="lk-dim">{escape(where)} · {escape(whose)} · keys ••••</span></div>{below}</div>'
    )


def _table(buckets: Sequence[Bucket]) -> str:
    rows = "".join(
        f"<tr><td>{escape(b.name)}</td><td>{b.objects:,}{' or more' * b.more}</td>"
        f"<td>{_size(b.bytes)}</td></tr>"
        for b in buckets
    )
    return f"<table><tr><th>bucket</th><th>objects</th><th>size</th></tr>{rows}</table>"


def _size(count: float) -> str:
    if count < 1000:
        return f"{count:.0f} B"
    power = 0
    while count >= 999.95 and power < len(_UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.1f} {_UNITS[power]}"
