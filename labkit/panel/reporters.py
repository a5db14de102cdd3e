"""Show a panel: as widgets in a notebook, as lines in a terminal, or not at all.

A reporter shows the snapshots of `labkit.panel.drawing`; `labkit.panel.base` decides when.
"""

import contextlib
import importlib.util
import os
import secrets
import signal
import sys
from collections.abc import Callable, Hashable
from typing import Any

from labkit.display import cards
from labkit.display.formatting import clock, short
from labkit.panel.drawing import Snapshot

_INTERRUPT_HINT = "or the kernel's ■"
_ONLY_BY_INTERRUPT = "stop it with the kernel's ■"
# Kinds of lines that a screen reader says; not each step.
_SAID = ("phase", "progress", "hang", "note", "decided", "failure")


class NullReporter:
    """Shows nothing; base of the others. A reporter shows one run after the other.

    Attributes:
        explain: finds out what each worker does now and lets the panel show it; None if it can't.
    """

    explain: Callable[[], None] | None = None

    def open(self, snapshot: Snapshot) -> None:
        """The run begins."""

    def draw(self, snapshot: Snapshot) -> None:
        """Something happened, or a second has passed."""

    def close(self, snapshot: Snapshot) -> None:
        """The run is over."""


class TextReporter(NullReporter):
    """Prints what is new as lines: for terminals, logs and CI."""

    def open(self, snapshot: Snapshot) -> None:
        self._said: dict[Hashable, str] = {}
        self.draw(snapshot)

    def draw(self, snapshot: Snapshot) -> None:
        before, self._said = self._said, dict(snapshot.lines)
        for line in "\n".join(text for key, text in self._said.items() if key not in before).splitlines():
            print(f"{clock(snapshot.seconds)} {snapshot.name}: {line}", flush=True)

    close = draw


class HtmlReporter(NullReporter):
    """The panel in a notebook without ipywidgets: one HTML output that is replaced, without buttons."""

    def open(self, snapshot: Snapshot) -> None:
        from IPython.display import display

        self._handle = display(self._drawn(snapshot), raw=True, display_id=f"labkit-{secrets.token_hex(8)}")

    def draw(self, snapshot: Snapshot) -> None:
        self._handle.update(self._drawn(snapshot), raw=True)

    close = draw

    def _drawn(self, snapshot: Snapshot) -> dict[str, str]:
        if snapshot.over:
            return _static(snapshot)
        right = cards.mark("dim lk-num", f"{clock(snapshot.seconds)} · {_ONLY_BY_INTERRUPT}")
        head = cards.head(snapshot.name, cards.mark("dim", snapshot.subtitle), right)
        return {"text/html": str(cards.frame(head, snapshot.html)), "text/plain": snapshot.name}


class WidgetReporter(NullReporter):
    """The panel in a notebook: ipywidgets while the run lasts; then static HTML in the same output.

    So it is saved with the notebook, and is there when that is reopened or converted.
    """

    def open(self, snapshot: Snapshot) -> None:
        from IPython.display import display

        self._box = self._handle = None  # until they are there: the reader may interrupt this
        self._stopping = self._over = False
        self._box = self._widgets()
        self.draw(snapshot)
        # None without IPython: then there is no output that could show the widgets.
        self._handle = display(self._box, display_id=f"labkit-{secrets.token_hex(8)}")

    def _widgets(self) -> Any:
        from ipywidgets import HTML, HBox, Layout, VBox

        self._title, self._clock, self._body, self._aloud = (HTML() for _ in range(4))
        buttons, hint = [], _ONLY_BY_INTERRUPT
        # VS Code and Colab deliver a click when the cell is done: they have no subshells.
        if "VSCODE_PID" not in os.environ and "google.colab" not in sys.modules:
            hint = _INTERRUPT_HINT
            buttons = [_button("Stop", f"Stop the run ({hint})", self._on_stop)]
            explain_now = self.explain
            if explain_now is not None:
                explain = _button("Explain", "Show what each worker does now", lambda _: explain_now())
                buttons.insert(0, explain)
        words = HTML(cards.part(cards.mark("dim", hint)))
        right = HBox([self._clock, *buttons, words], layout=Layout(align_items="center"))
        row = Layout(justify_content="space-between", align_items="center", padding="0 12px 0 0")
        head = HBox([self._title, right], layout=row)
        style = HTML(cards.STYLE, layout=Layout(display="none"))
        wide = Layout(max_width="880px", overflow="hidden")
        box = VBox([style, head, self._body, self._aloud], layout=wide)
        return box.add_class("labkit").add_class("lk-card")

    # A widget sends a value only if it is another one, so the browser lays out only what has changed.

    def draw(self, snapshot: Snapshot) -> None:
        words = "stopping … " if self._stopping and not snapshot.over else ""
        self._title.value = str(cards.part(cards.head(snapshot.name, cards.mark("dim", snapshot.subtitle))))
        self._clock.value = str(cards.part(cards.mark("dim lk-num", words + clock(snapshot.seconds))))
        self._body.value = str(snapshot.html)
        news = [line for key, line in snapshot.lines if isinstance(key, tuple) and key[0] in _SAID]
        self._aloud.value = str(cards.part(cards.said(short(news[-1], 200) if news else "")))

    def close(self, snapshot: Snapshot) -> None:
        self._over = True
        if self._handle is None:
            print(_static(snapshot)["text/plain"])
        else:
            self._handle.update(_static(snapshot), raw=True)
        # Otherwise every run leaves two dozen models in the kernel, and in the notebook when it is saved.
        if self._box is not None:
            _close(self._box)

    def _on_stop(self, button: Any) -> None:
        """Runs in the thread of a kernel subshell while the cell's thread sits in its blocking call."""
        if self._over:
            return  # a front end without subshells delivers the click when the cell is done
        self._stopping = button.disabled = True
        button.description = "stopping"
        # SIGINT is handled in the main thread, where the engine's own handler aborts the run in good order.
        os.kill(os.getpid(), signal.SIGINT)


def choose(kind: str) -> NullReporter:
    """The reporter for a setting: "widgets", "text", "none", or "auto".

    In a notebook that is widgets, or HTML where ipywidgets is missing; elsewhere text.
    """
    if kind == "auto":
        in_notebook = "widgets" if importlib.util.find_spec("ipywidgets") else "html"
        kind = in_notebook if _in_notebook() else "text"
    kinds = {"widgets": WidgetReporter, "html": HtmlReporter, "text": TextReporter, "none": NullReporter}
    return kinds[kind]()


def _static(snapshot: Snapshot) -> dict[str, str]:
    """What stays in the notebook."""
    return {"text/html": str(snapshot.html), "text/plain": f"{snapshot.name}: {snapshot.lines[-1][1]}"}


def _button(name: str, tooltip: str, on_click: Callable[[Any], None]) -> Any:
    """A button whose clicks are handled in the kernel subshell that the front end sends them to.

    From ipykernel 7.4 on a click goes to the shell in which the widget last spoke: the main one, whose thread
    is busy with the training. `_reply_subshell_for` is private: without it, the kernel's ■ still works.
    """
    from ipywidgets import Button, Layout

    button = Button(description=name, tooltip=tooltip, layout=Layout(width="72px"))
    button.on_click(on_click)
    with contextlib.suppress(AttributeError):  # no kernel, so there are no clicks
        button.comm._reply_subshell_for = lambda data, chosen: chosen
    return button


def _close(widget: Any) -> None:
    for part in getattr(widget, "children", ()):
        _close(part)
    for part in (widget.layout, getattr(widget, "style", None), widget):
        if part is not None:
            part.close()


def _in_notebook() -> bool:
    """Whether this process is a kernel with a front end (a terminal's IPython has none)."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_ipython() if get_ipython else None
    # Colab's shell is a subclass.
    return any(one.__name__ == "ZMQInteractiveShell" for one in type(shell).__mro__)
