"""What is sent into another process to report from there: it has a panel's address, and no panel."""

import time
from typing import Any, Protocol

from labkit.panel.tracking.channel import Address, Sender


class Receiver(Protocol):
    """A panel, as far as its messengers know it."""

    def where_to_report(self) -> tuple[str, Address | None]: ...


class Messenger:
    """Base of callbacks and functions that a run carries into its processes.

    Here it keeps the panel. Only when it is pickled, as `fit()` sends it on its way, is the panel asked for
    its address: a panel may follow several runs, one after the other. In a process that it came to it sends.
    """

    def __init__(self, panel: Receiver) -> None:
        self._panel: Receiver | None = panel
        self._run, self._address = "", None
        self._sender: Sender | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self._panel is not None:
            run, address = self._panel.where_to_report()
        else:
            run, address = self._run, self._address
        state = {k: v for k, v in self.__dict__.items() if k not in ("_panel", "_sender")}
        return {**state, "_run": run, "_address": address}

    def __setstate__(self, state: dict[str, Any]) -> None:
        address = state["_address"]  # None: the run was over
        self.__dict__.update(state, _panel=None, _sender=None if address is None else Sender(address))

    def reports_to(self, panel: Receiver) -> bool:
        """Whether `panel` made it."""
        return self._panel is panel

    def _send(self, **event: Any) -> None:
        if self._sender is not None:
            self._sender.send({"run": self._run, "at": time.time(), **event})
