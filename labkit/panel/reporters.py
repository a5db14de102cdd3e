"""Show a panel: as widgets in a notebook, as lines in a terminal, or not at all.

A reporter shows the snapshots of `labkit.panel.drawing`; `labkit.panel.base` decides when.
"""

import contextlib
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Hashable
from typing import Any

from labkit import _jupyter
from labkit.display import cards
from labkit.display.formatting import clock, short
from labkit.panel.drawing import Snapshot

_INTERRUPT_HINT = "or the kernel's ■"
_ONLY_BY_INTERRUPT = "stop it with the kernel's ■"
# Which lines a screen reader reads aloud, by the first part of their keys; not each step.
_ALOUD = ("phase", "progress", "hang", "note", "decided", "failure")


class NullReporter:
    """Shows nothing; base of the others. A reporter shows one run after the other.

    Attributes:
        explain: makes the panel show what each worker does now; None if that isn't possible.
    """

    explain: Callable[[], None] | None = None

    def open(self, snapshot: Snapshot) -> None:
        """Begin to show a run."""

    def draw(self, snapshot: Snapshot) -> None:
        """Show that something happened, or that a second has passed."""

    def close(self, snapshot: Snapshot) -> None:
        """Show the end of the run."""


class TextReporter(NullReporter):
    """Prints what is new as lines: for terminals, logs and CI."""

    def open(self, snapshot: Snapshot) -> None:
        self._printed: dict[Hashable, str] = {}
        self.draw(snapshot)

    def draw(self, snapshot: Snapshot) -> None:
        before = self._printed
        self._printed = dict(snapshot.lines)
        news = [text for key, text in self._printed.items() if key not in before]
        head = f"{clock(snapshot.seconds)} {snapshot.name}"
        for line in "\n".join(news).splitlines():
            print(f"{head}: {line}", flush=True)

    close = draw


class HtmlReporter(NullReporter):
    """The panel in a notebook without ipywidgets: one HTML output that is replaced, without buttons."""

    def open(self, snapshot: Snapshot) -> None:
        from IPython.display import display

        self._handle = display(self._drawn(snapshot), raw=True, display_id=True)

    def draw(self, snapshot: Snapshot) -> None:
        self._handle.update(self._drawn(snapshot), raw=True)

    close = draw

    def _drawn(self, snapshot: Snapshot) -> dict[str, str]:
        if snapshot.over:
            return _static(snapshot)
        subtitle = cards.mark("dim", snapshot.subtitle)
        right = cards.mark("dim lk-num", f"{clock(snapshot.seconds)} · {_ONLY_BY_INTERRUPT}")
        head = cards.head(snapshot.name, subtitle, right)
        html = cards.frame(head, snapshot.html)
        return {"text/html": str(html), "text/plain": snapshot.name}


class WidgetReporter(NullReporter):
    """The panel in a notebook: ipywidgets while the run lasts; then static HTML in the same output.

    So it is saved with the notebook, and is there when that is reopened or converted.
    """

    def open(self, snapshot: Snapshot) -> None:
        from IPython.display import display

        # None until they are there: the reader may interrupt this.
        self._box: Any = None
        self._handle: Any = None
        self._stopping = False
        self._over = False
        self._box = self._widgets()
        self.draw(snapshot)
        # None without IPython: then there is no output that could show the widgets.
        self._handle = display(self._box, display_id=True)

    def _widgets(self) -> Any:
        from ipywidgets import HTML, HBox, Layout, VBox

        self._title = HTML()
        self._clock = HTML()
        self._body = HTML()
        self._aloud = HTML()
        buttons: list[Any] = []
        hint = _ONLY_BY_INTERRUPT
        # VS Code and Colab deliver a click when the cell is done: they have no subshells.
        if "VSCODE_PID" not in os.environ and "google.colab" not in sys.modules:
            hint = _INTERRUPT_HINT
            buttons = self._buttons()
        right = HBox(
            [self._clock, *buttons, HTML(cards.part(cards.mark("dim", hint)))],
            layout=Layout(align_items="center"),
        )
        head = HBox(
            [self._title, right],
            layout=Layout(
                justify_content="space-between",
                align_items="center",
                padding="0 12px 0 0",
            ),
        )
        style = HTML(cards.STYLE, layout=Layout(display="none"))
        box = VBox(
            [style, head, self._body, self._aloud],
            layout=Layout(max_width="880px", overflow="hidden"),
        )
        return box.add_class("labkit").add_class("lk-card")

    def _buttons(self) -> list[Any]:
        stop = _button("Stop", f"Stop the run ({_INTERRUPT_HINT})", self._on_stop)
        explain = self.explain
        if explain is None:
            return [stop]
        return [_button("Explain", "Show what each worker does now", lambda _: explain()), stop]

    # A widget sends a value only if it is another one, so the browser lays out only what has changed.

    def draw(self, snapshot: Snapshot) -> None:
        subtitle = cards.mark("dim", snapshot.subtitle)
        self._title.value = str(cards.part(cards.head(snapshot.name, subtitle)))
        time = clock(snapshot.seconds)
        if self._stopping and not snapshot.over:
            time = f"stopping … {time}"
        self._clock.value = str(cards.part(cards.mark("dim lk-num", time)))
        self._body.value = str(snapshot.html)
        news = ""
        for key, line in snapshot.lines:
            if isinstance(key, tuple) and key[0] in _ALOUD:
                news = line
        self._aloud.value = str(cards.part(cards.said(short(news, 200))))

    def close(self, snapshot: Snapshot) -> None:
        self._over = True
        if self._handle is None:
            print(_static(snapshot)["text/plain"])
        else:
            self._handle.update(_static(snapshot), raw=True)
        # Otherwise every run leaves two dozen models in the kernel, and in the notebook when it is saved.
        if self._box is not None:
            _close(self._box)

    # The clicks are handled in the thread of a kernel subshell: the cell's thread sits in its blocking call.

    def _on_stop(self, button: Any) -> None:
        if self._over:
            return  # a front end without subshells delivers the click when the cell is done
        self._stopping = True
        button.disabled = True
        button.description = "stopping"
        # SIGINT is handled in the main thread, where the engine's own handler aborts the run in good order.
        os.kill(os.getpid(), signal.SIGINT)


def choose(setting: str) -> NullReporter:
    """Return the reporter for a setting: "widgets", "text", "none", or "auto".

    In a notebook that is widgets, or HTML where ipywidgets is missing; elsewhere text.
    """
    if setting == "auto":
        setting = "text"
        if _in_notebook():
            setting = "widgets" if importlib.util.find_spec("ipywidgets") else "html"
    reporters = {
        "widgets": WidgetReporter,
        "html": HtmlReporter,
        "text": TextReporter,
        "none": NullReporter,
    }
    return reporters[setting]()


def _static(snapshot: Snapshot) -> dict[str, str]:
    """Return what stays in the notebook."""
    _, last_line = snapshot.lines[-1]
    return {"text/html": str(snapshot.html), "text/plain": f"{snapshot.name}: {last_line}"}


def _button(name: str, tooltip: str, on_click: Callable[[Any], None]) -> Any:
    """Return a button whose clicks are handled in the kernel subshell that the front end sends them to.

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
    """Return whether this process is a kernel with a front end (a terminal's IPython has none)."""
    shell = type(_jupyter.shell())
    classes = [ancestor.__name__ for ancestor in shell.__mro__]  # Colab's shell is a subclass
    return "ZMQInteractiveShell" in classes
