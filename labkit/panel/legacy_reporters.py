"""Reporters of `labkit.panel.legacy`."""

import contextlib
import os
import secrets
import signal
import sys
import time
from typing import Any, Protocol

from labkit.display import formatting
from labkit.display.style import STYLE

_DECIDED = {"validated": "validated", "failed": "validation failed", "timed out": "validation timed out"}
_INTERRUPT_HINT = "or the kernel's ■"


class Reporter(Protocol):
    """Draws a run. All three are called with the panel's lock held, so the state stands still."""

    def open(self, state: Any) -> None: ...

    def draw(self, state: Any) -> None: ...

    def close(self, state: Any, files: list[tuple[str, str]], record: str | None) -> None: ...


class NullReporter:
    """Draws nothing."""

    def open(self, state: Any) -> None:
        pass

    def draw(self, state: Any) -> None:
        pass

    def close(self, state: Any, files: list[tuple[str, str]], record: str | None) -> None:
        pass


class WidgetReporter:
    """The panel in a notebook: ipywidgets while the run lasts, static HTML when it is over.

    The static HTML replaces the widgets in the same output, so it is saved with the notebook, and is
    there when it is reopened or converted. Nothing is ever cleared.

    Args:
        files: returns what the *files* toggle lists, as (what, path).
        look: draws a state, as `labkit.panel.view.html` does.
    """

    def __init__(self, files: Any, look: Any) -> None:
        self._files, self._look = files, look
        self._output_name = getattr(look, "OUTPUT", "output")

    def open(self, state: Any) -> None:
        import ipywidgets
        from IPython.display import display

        self._shown: dict[str, str] = {}
        self._stopping = self._over = False
        layout = ipywidgets.Layout
        self._title, self._clock = ipywidgets.HTML(), ipywidgets.HTML()
        self._body, self._details = ipywidgets.HTML(), ipywidgets.HTML()
        self._stop = ipywidgets.Button(
            description="Stop", tooltip=f"Stop the run ({_INTERRUPT_HINT})", layout=layout(width="72px")
        )
        self._stop.on_click(self._on_stop)
        hint = ipywidgets.HTML(f'<div class="labkit"><span class="lk-dim">{_INTERRUPT_HINT}</span></div>')
        toggle = {"layout": layout(width="auto", height="24px")}
        self._output = ipywidgets.ToggleButton(
            description=self._output_name, tooltip=f"The {self._output_name} of the workers", **toggle
        )
        self._logs = ipywidgets.ToggleButton(description="files", tooltip="Where the logs lie", **toggle)
        for button in (self._stop, self._output, self._logs):
            _answer_at_once(button)
        for button in (self._output, self._logs):
            button.observe(lambda _: self._draw_details(state), names="value")
        head = ipywidgets.HBox(
            [
                self._title,
                ipywidgets.HBox([self._clock, self._stop, hint], layout=layout(align_items="center")),
            ],
            layout=layout(justify_content="space-between", align_items="center", padding="0 12px 0 0"),
        )
        toggles = ipywidgets.HBox([self._output, self._logs], layout=layout(padding="0 10px 8px"))
        box = ipywidgets.VBox(
            [
                ipywidgets.HTML(STYLE, layout=layout(display="none")),
                head,
                self._body,
                toggles,
                self._details,
            ],
            layout=layout(max_width="880px", overflow="hidden"),
        )
        box.add_class("labkit").add_class("lk-card")
        self._set(self._title, "title", self._look.title(state))
        self.draw(state)
        self._box = box
        # None where there is no IPython at all: then the widgets have no place to stand.
        self._handle = display(box, display_id=f"labkit-{secrets.token_hex(8)}")

    def draw(self, state: Any) -> None:
        now = time.time()
        self._set(self._title, "title", self._look.title(state))
        self._set(self._clock, "clock", self._look.clock_and_status(state, now, stopping=self._stopping))
        self._set(self._body, "body", self._look.body(state, now))
        self._draw_details(state)

    def close(self, state: Any, files: list[tuple[str, str]], record: str | None) -> None:
        self._over = True
        html = self._look.summary(state, logs=files, record=record)
        text = f"{state.name}: {state.status} after {formatting.clock(state.elapsed())}"
        text += f" · {state.note}" if getattr(state, "note", "") else ""
        if self._handle is None:
            print(text)
        else:
            self._handle.update({"text/html": html, "text/plain": text}, raw=True)
        # Otherwise every run leaves two dozen models in the kernel, and in the notebook when it is saved.
        _close(self._box)

    def _draw_details(self, state: Any) -> None:
        files = self._files() if self._logs.value else None
        self._set(self._details, "details", self._look.details(state, output=self._output.value, logs=files))
        label = self._output_name + (f" ({state.printed})" if state.printed else "")
        if self._shown.get("label") != label:
            self._shown["label"] = self._output.description = label

    def _set(self, widget: Any, key: str, html: str) -> None:
        # Sending what is there already would make the browser lay it out again.
        if self._shown.get(key) != html:
            self._shown[key] = widget.value = html

    def _on_stop(self, _: Any) -> None:
        """Runs in the thread of a kernel subshell while the cell's thread sits in its blocking call."""
        if self._over:
            return  # a front end without subshells hands the click over when the cell is done
        self._stopping = True
        self._stop.disabled = True
        self._stop.description = "stopping"
        # SIGINT is handled in the main thread, where Ray's own handler aborts the run in good order.
        os.kill(os.getpid(), signal.SIGINT)


def choose(kind: str, *, files: Any, look: Any, text: Any) -> Reporter:
    """The reporter for a setting: ``widgets``, ``text``, ``none``, or ``auto`` (widgets in a notebook).

    Args:
        files: what the widgets' *files* toggle lists.
        look, text: what draws the state of another kind of run, as HTML and as lines.
    """
    if kind == "auto":
        kind = "widgets" if _in_notebook() else "text"
    made = {"widgets": lambda: WidgetReporter(files, look), "text": text, "none": NullReporter}
    return made[kind]()


def _answer_at_once(widget: Any) -> None:
    """Let what is clicked be handled in the kernel subshell that the front end sends it to.

    From ipykernel 7.4 on the kernel hands it to the shell in which the widget last spoke: the main one,
    whose thread is in the training's cell, so that a click on Stop would wait for the end of the training.
    """
    with contextlib.suppress(AttributeError):  # no kernel, so nobody clicks
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
