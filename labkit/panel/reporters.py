"""Show a panel: as widgets in a notebook, as lines in a terminal, or not at all.

A reporter draws what a view gives it; `labkit.panel.base` decides when.
"""

import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from markupsafe import Markup

from labkit.display import cards
from labkit.display.formatting import clock
from labkit.display.style import STYLE
from labkit.panel.view.base import Snapshot, View

_INTERRUPT_HINT = "or the kernel's ■"
Files = list[tuple[str, str]]  # (what, path)


class Reporter(Protocol):
    """Shows one run after the other."""

    def open(self, view: View, snapshot: Snapshot, files: Callable[[], Files]) -> None: ...

    def draw(self, snapshot: Snapshot) -> None: ...

    def close(self, snapshot: Snapshot) -> None: ...


class NullReporter:
    """Draws nothing."""

    def open(self, view: View, snapshot: Snapshot, files: Callable[[], Files]) -> None:
        pass

    def draw(self, snapshot: Snapshot) -> None:
        pass

    def close(self, snapshot: Snapshot) -> None:
        pass


class TextReporter:
    """Prints what is new as lines: for terminals, logs and CI.

    Args:
        stream: where to write; default: ``sys.stdout`` at the time of each line.
    """

    def __init__(self, stream: Any = None) -> None:
        self._stream = stream

    def open(self, view: View, snapshot: Snapshot, files: Callable[[], Files]) -> None:
        self._view, self._said, self._printed = view, set[Hashable](), 0
        self.draw(snapshot)

    def draw(self, snapshot: Snapshot) -> None:
        new, self._printed = snapshot.printed - self._printed, snapshot.printed
        if new > len(snapshot.prints):
            self._say(snapshot, f"… {new - len(snapshot.prints)} printed lines are in the logs")
        for text in snapshot.prints[-new:] if new else ():
            self._say(snapshot, text)
        for key, text in self._view.lines(snapshot):
            if key not in self._said:
                self._said.add(key)
                self._say(snapshot, text)

    def close(self, snapshot: Snapshot) -> None:
        self.draw(snapshot)

    def _say(self, snapshot: Snapshot, text: str) -> None:
        stream = self._stream or sys.stdout
        for line in text.splitlines():
            print(f"{clock(snapshot.seconds)} {snapshot.name}: {line}", file=stream, flush=True)


class WidgetReporter:
    """The panel in a notebook: ipywidgets while the run lasts, static HTML when it is over.

    The static HTML replaces the widgets in the same output, so it is saved with the notebook, and is
    there when it is reopened or converted. Nothing is ever cleared.
    """

    def open(self, view: View, snapshot: Snapshot, files: Callable[[], Files]) -> None:
        import ipywidgets
        from IPython.display import display

        self._view, self._files, self._snapshot = view, files, snapshot
        self._box = self._handle = None  # until they are there: the reader may interrupt this
        self._shown: dict[str, str] = {}
        self._stopping = self._over = False
        layout = ipywidgets.Layout
        self._title, self._clock = ipywidgets.HTML(), ipywidgets.HTML()
        self._body, self._details = ipywidgets.HTML(), ipywidgets.HTML()
        self._stop = ipywidgets.Button(
            description="Stop", tooltip=f"Stop the run ({_INTERRUPT_HINT})", layout=layout(width="72px")
        )
        self._stop.on_click(self._on_stop)
        toggle = {"layout": layout(width="auto", height="24px")}
        self._output = ipywidgets.ToggleButton(tooltip=f"The {view.output} of the workers", **toggle)
        self._logs = ipywidgets.ToggleButton(description="files", tooltip="Where the logs are", **toggle)
        for button in (self._stop, self._output, self._logs):
            _handle_clicks_in_subshell(button)
        for button in (self._output, self._logs):
            button.observe(lambda _: self._draw_details(), names="value")
        hint = ipywidgets.HTML(cards.part(cards.mark("dim", _INTERRUPT_HINT)))
        right = ipywidgets.HBox([self._clock, self._stop, hint], layout=layout(align_items="center"))
        head = ipywidgets.HBox(
            [self._title, right],
            layout=layout(justify_content="space-between", align_items="center", padding="0 12px 0 0"),
        )
        toggles = ipywidgets.HBox([self._output, self._logs], layout=layout(padding="0 10px 8px"))
        style = ipywidgets.HTML(STYLE, layout=layout(display="none"))
        self._box = ipywidgets.VBox(
            [style, head, self._body, toggles, self._details],
            layout=layout(max_width="880px", overflow="hidden"),
        )
        self._box.add_class("labkit").add_class("lk-card")
        self.draw(snapshot)
        # None without IPython: then there is no output that could show the widgets.
        self._handle = display(self._box, display_id=f"labkit-{secrets.token_hex(8)}")

    def draw(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        words = "stopping … " if self._stopping and not snapshot.over else ""
        self._set("_title", cards.part(cards.head(snapshot.title, cards.mark("dim", snapshot.subtitle))))
        self._set("_clock", cards.part(cards.mark("dim lk-num", words + clock(snapshot.seconds))))
        self._set("_body", self._view.html(snapshot))
        self._draw_details()

    def close(self, snapshot: Snapshot) -> None:
        self._over = True
        text = f"{snapshot.name}: {self._view.last_line(snapshot)}"
        if self._handle is None:
            print(text)
        else:
            html = str(self._view.summary(snapshot, self._files()))
            self._handle.update({"text/html": html, "text/plain": text}, raw=True)
        # Otherwise every run leaves two dozen models in the kernel, and in the notebook when it is saved.
        if self._box is not None:
            _close(self._box)

    def _draw_details(self) -> None:
        parts = [self._view.details(self._snapshot)] if self._output.value else []
        parts += [cards.rule(cards.files(self._files()))] if self._logs.value else []
        self._set("_details", cards.part(*parts) if parts else Markup())
        printed = self._snapshot.printed
        label = self._view.output + (f" ({printed})" if printed else "")
        if self._output.description != label:
            self._output.description = label

    def _set(self, name: str, html: str) -> None:
        # Sending the same HTML again would make the browser lay it out again.
        if self._shown.get(name) != html:
            self._shown[name] = getattr(self, name).value = str(html)

    def _on_stop(self, _: Any) -> None:
        """Runs in the thread of a kernel subshell while the cell's thread sits in its blocking call."""
        if self._over:
            return  # a front end without subshells delivers the click when the cell is done
        self._stopping = True
        self._stop.disabled = True
        self._stop.description = "stopping"
        # SIGINT is handled in the main thread, where the engine's own handler aborts the run in good order.
        os.kill(os.getpid(), signal.SIGINT)


def choose(kind: str) -> Reporter:
    """The reporter for a setting: "widgets", "text", "none", or "auto" (widgets in a notebook)."""
    if kind == "auto":
        kind = "widgets" if _in_notebook() else "text"
    return {"widgets": WidgetReporter, "text": TextReporter, "none": NullReporter}[kind]()


def _handle_clicks_in_subshell(widget: Any) -> None:
    """Let a click be handled in the kernel subshell that the front end sends it to.

    From ipykernel 7.4 on the kernel hands it to the shell in which the widget last spoke: the main one,
    whose thread is in the training's cell, so a click on Stop would wait for the end of the training.
    `_reply_subshell_for` is private: without it, the kernel's ■ still works.
    """
    with contextlib.suppress(AttributeError):  # no kernel, so there are no clicks
        widget.comm._reply_subshell_for = lambda data, chosen: chosen


def _close(widget: Any) -> None:
    """Close a widget with all that it is made of."""
    for part in (*getattr(widget, "children", ()), widget.layout, getattr(widget, "style", None)):
        if hasattr(part, "children") or hasattr(part, "layout"):
            _close(part)
        elif part is not None:
            part.close()
    widget.close()


def _in_notebook() -> bool:
    """Whether this process is a kernel with a front end (a terminal's IPython has none)."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_ipython() if get_ipython else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"
