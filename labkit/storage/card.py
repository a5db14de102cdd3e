"""What an object store holds, in a line and as a card."""

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.display import cards
from labkit.display.formatting import plural, size
from labkit.errors import StorageError


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
    """ "2 buckets, 1,437 objects, 600 kB"."""
    objects, stored = sum(b.objects for b in buckets), sum(b.bytes for b in buckets)
    more = " or more" if any(b.more for b in buckets) else ""
    return f"{plural(len(buckets), 'bucket')}, {objects:,} objects{more}, {size(stored)}"


def draw(where: str, whose: str, found: Sequence[Bucket] | StorageError | None) -> str:
    """The card as HTML.

    Args:
        where: the endpoint.
        whose: "the lab's own, rclone".
        found: the buckets, why they are not known, or None for a store that was stopped.
    """
    if found is None:
        status, below = ("dim", "stopped"), cards.NOTHING
    elif isinstance(found, StorageError):
        status, below = ("bad", "✕ not usable"), cards.text(f"{found.fact}; {found.fix}")
    else:
        rows = [(b.name, f"{b.objects:,}{' or more' * b.more}", size(b.bytes)) for b in found]
        status, below = ("ok", "running"), cards.rule(cards.table(("bucket", "objects", "size"), rows))
    return str(cards.card("Object store", status, below, dim=f"{where} · {whose} · keys ••••"))
