"""JupyterLab in a real browser: a server of `make lab`, and a notebook in it as a reader works through it."""

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import requests
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from labkit.machine import free_port
from labs import until

ROOT = Path(__file__).resolve().parents[2]
# What a screenshot is compared by is the eye; it is kept for that.
ARTEFACTS = ROOT / "artefacts"
# For what never comes: a slow or busy machine takes many times as long as a quiet one.
_SECONDS = 300

# Whether the style sheet of a theme has come: its ground is there, and light or dark.
_GROUND_IS_LIGHT = """light => {
    const one = document.createElement('i');
    one.style.background = 'var(--jp-layout-color1)';
    document.body.append(one);
    const colours = getComputedStyle(one).backgroundColor.match(/[0-9.]+/g).map(Number);
    one.remove();
    return colours.length === 3 && (colours[0] + colours[1] + colours[2] > 382) === light;
}"""


@contextlib.contextmanager
def served(folder: Path, **variables: str) -> Iterator[str]:
    """`make lab` with `folder` as its root; yields the address, with the token in it."""
    token, port = secrets.token_hex(16), free_port()
    options = (
        f"--no-browser --port {port} --ServerApp.root_dir={folder} --LabApp.expose_app_in_browser=True "
        "--MultiKernelManager.default_kernel_name=python3"
    )
    command = ["make", "--no-print-directory", "lab", f"VENV={sys.prefix}", f"LAB_ARGS={options}"]
    # Its own settings: a test that changes the theme is not to change that of the person who runs it.
    settings = {"JUPYTER_TOKEN": token, "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings")}
    environment = {**os.environ, **variables, **settings}
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}/api?token={token}"
        until(lambda: _answers(url) or server.poll() is not None, _SECONDS)
        assert server.poll() is None, (folder / "server.log").read_text()
        yield f"http://127.0.0.1:{port}/doc/tree/{{}}?token={token}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGINT)
            os.killpg(server.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)


def write_notebook(path: Path, *cells: str) -> None:
    """Write a notebook with these code cells."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)
    ARTEFACTS.mkdir(exist_ok=True)


def _answers(url: str) -> bool:
    with contextlib.suppress(requests.RequestException):
        return requests.get(url, timeout=5).ok
    return False


@contextlib.contextmanager
def browser(chromium: str) -> Iterator[Page]:
    with sync_playwright() as playwright:
        # No sandbox: a container's root has none. No network but ours.
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        launched = playwright.chromium.launch(executable_path=chromium, args=arguments)
        try:
            yield new_page(launched)
        finally:
            launched.close()


def new_page(browser: Browser, **options: Any) -> Page:
    """A page that waits as long as it must for what it is asked to find or to load."""
    page = browser.new_page(viewport={"width": 1200, "height": 1000}, **options)
    page.set_default_timeout(1000 * _SECONDS)
    return page


PANDAS = ("empty-table-header",)  # the column of a table's index


def accessible(page: Page, context: str | None = None, *, ignored: tuple[str, ...] = PANDAS) -> None:
    """Assert that axe-core finds nothing wrong in a page, or in the parts of it that a selector names."""
    options = {"rules": {rule: {"enabled": False} for rule in ignored}}
    violations = Axe().run(page, context=context, options=options).response["violations"]
    assert [(rule["id"], [node["html"][:300] for node in rule["nodes"]]) for rule in violations] == []


def readable_everywhere(page: Page, name: str, *, full_page: bool = False) -> None:
    """Assert that a page fits a laptop and a phone, and is accessible in light and dark; keep pictures."""
    for width, theme in ((1500, "light"), (1500, "dark"), (390, "light")):
        page.set_viewport_size({"width": width, "height": 1000})
        page.emulate_media(color_scheme=theme)
        page.screenshot(path=ARTEFACTS / f"{name}-{theme}-{width}.png", full_page=full_page)
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), "it is too wide"
        accessible(page, ignored=())


class NotebookPage:
    """An open notebook.

    Args:
        page: a browser's page.
        address: of the notebook, with its token.
    """

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        page.goto(address)
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        # "idle" is shown before there is a kernel, too.
        page.wait_for_function(
            "() => window.jupyterapp.shell.currentWidget?.context?.sessionContext?.session?.kernel"
            "?.status === 'idle'"
        )

    def command(self, name: str, **arguments: object) -> None:
        """Begin one of JupyterLab's own commands (what its menus do); that of a cell ends with the cell."""
        self.page.evaluate(
            "([name, given]) => { void window.jupyterapp.commands.execute(name, given); }", [name, arguments]
        )

    def theme(self, name: str) -> None:
        self.command("apputils:change-theme", theme=f"JupyterLab {name}")
        light = "true" if name == "Light" else "false"
        self.page.wait_for_selector(f"body[data-jp-theme-light='{light}']", state="attached")
        self.page.wait_for_function(_GROUND_IS_LIGHT, arg=name == "Light")
        self.page.wait_for_timeout(1000)  # the page is drawn again

    @property
    def busy(self) -> bool:
        """Whether a cell runs or waits to. Asked in the page's own words: a locator costs it far more."""
        return self.page.evaluate(
            "() => Array.from(document.querySelectorAll('.jp-InputPrompt')).some("
            "one => one.textContent.includes('[*]'))"
        )

    def wait_idle(self, *, seconds: float = _SECONDS, meanwhile: Callable[[], None] = lambda: None) -> None:
        deadline = time.monotonic() + seconds
        while self.busy:
            assert time.monotonic() < deadline, f"the kernel is busy after {seconds} s"
            meanwhile()
            self.page.wait_for_timeout(250)

    def cell(self, number: int) -> Locator:
        """A cell by its place; it is scrolled to, since JupyterLab draws only what is near the screen."""
        self.page.evaluate(
            """number => {
                const notebook = window.jupyterapp.shell.currentWidget.content;
                notebook.activeCellIndex = number;
                return notebook.scrollToItem(number, 'smart');
            }""",
            number,
        )
        cell = self.page.locator(f".jp-Notebook .jp-Cell[data-windowed-list-index='{number}']")
        cell.wait_for(state="attached")
        return cell

    def summaries(self, number: int, name: str) -> Iterator[Locator]:
        """The panel that a cell left, in both themes; afterwards it is photographed and read by axe-core."""
        for theme in ("Dark", "Light"):
            self.theme(theme)
            card = self.cell(number).locator(".lk-card")
            card.wait_for()
            yield card
            self.page.wait_for_timeout(500)
            card.scroll_into_view_if_needed()
            self.page.screenshot(path=ARTEFACTS / f"{name}-summary-{theme.lower()}.png")
            # JupyterLab makes all columns of a table equally wide; ours are as wide as their contents.
            cut_off = card.evaluate(
                "card => [...card.querySelectorAll('td')].filter("
                "one => one.scrollWidth > one.clientWidth + 1).map(one => one.textContent)"
            )
            assert not cut_off, cut_off
            accessible(self.page, ".lk-card")

    def run(
        self, number: int, *, seconds: float = _SECONDS, meanwhile: Callable[[], None] = lambda: None
    ) -> Locator:
        """Run a cell as Shift+Enter does, and wait for its end."""
        cell = self.begin(number)
        self.wait_idle(seconds=seconds, meanwhile=meanwhile)
        return cell

    def begin(self, number: int) -> Locator:
        cell = self.cell(number)
        self.command("notebook:run-cell")
        # A cell that waits or runs has a star, and one that has run a number.
        cell.locator(".jp-InputPrompt").filter(has_text=re.compile(r"\[(\*|\d+)\]")).wait_for()
        return cell

    def wait_for(self, cell: Locator, selector: str, *, seconds: float = _SECONDS) -> Locator:
        """Wait until a cell that runs shows something; if it ends without it, its text tells why."""
        wanted = cell.locator(selector).first
        deadline = time.monotonic() + seconds
        while not wanted.is_visible():
            ended, late = not self.busy, time.monotonic() > deadline
            if (ended or late) and not wanted.is_visible():
                state = "ended" if ended else f"has run for {seconds} s"
                raise AssertionError(f"the cell {state} and shows no {selector}: {cell.inner_text()}")
            self.page.wait_for_timeout(250)
        return wanted

    def shut_down(self) -> None:
        """Shut the kernel down, and wait until the server has: a page that is left at once may not ask."""
        self.page.evaluate("() => window.jupyterapp.shell.currentWidget.context.sessionContext.shutdown()")

    def save(self) -> None:
        self.command("docmanager:save")
        self.page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
