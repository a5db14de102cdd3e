"""The watchdog of a process group: ``python -m labkit.system.watchdog HOME GROUP SECONDS``.

A process of a few MB that waits until every process that owns the group has ended, in whatever way, and stops
the group if no new owner comes within some seconds. It stops it as well when the records are gone (their
folder was removed), because then nothing else could.
"""

import sys
import time

from labkit.system.process_registry import ProcessRegistry


def watch(home: str, group_id: str, *, seconds: float) -> None:
    """Wait until a group has had no owner for `seconds`, then stop it."""
    registry = ProcessRegistry(home)
    last_owned = time.monotonic()
    while registry.records(group_id) and time.monotonic() - last_owned <= seconds:
        time.sleep(1.0)
        if registry.has_owner(group_id):
            last_owned = time.monotonic()
    registry.stop(group_id)


if __name__ == "__main__":
    watch(sys.argv[1], sys.argv[2], seconds=float(sys.argv[3]))
