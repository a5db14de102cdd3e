"""The keeper of a lab: ``python -m labkit.keeper HOME LAB SECONDS``.

It stands beside each lab: a process of a few MB that waits until the kernel which owns the lab is gone,
however it went, and stops the lab if no other kernel takes it over within some seconds.
"""

import sys
import time

from labkit.system.process_registry import Registry

_LOOK_EVERY = 1.0  # seconds between two looks at the owner


def keep(home: str, lab: str, *, seconds: float) -> None:
    """Wait until `lab` has had no living owner for `seconds`, then stop it.

    It is stopped as well when its records are gone (somebody removed the folder): nobody else could.
    """
    registry = Registry(home)
    last_owned = time.monotonic()
    while registry.entries(lab):
        if registry.owned(lab):
            last_owned = time.monotonic()
        elif time.monotonic() - last_owned > seconds:
            break
        time.sleep(_LOOK_EVERY)
    registry.stop(lab)


if __name__ == "__main__":
    _, _home, _lab, _seconds = sys.argv
    keep(_home, _lab, seconds=float(_seconds))
