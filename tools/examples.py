"""Solved lessons as plain Markdown, for readers who look at the repository before they install anything.

    python tools/examples.py        docs/examples/*.md from the notebooks that the last `make test` ran

GitHub shows neither styles nor scripts of a notebook's output, so what a cell shows as HTML (a panel, a card,
a table) becomes a picture, drawn by a real Chromium. Texts stay texts, without folders of this machine.
"""

import base64
import io
import os
import re
import shutil
import socket
import sys
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter
from nbconvert.writers import FilesWriter
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

import build
import website
from labkit.errors import LabError

EXAMPLES = build.FOLDER.parent / "docs" / "examples"
LESSONS = ("tour", "03_torch_trainer", "08_when_machines_fail")
_WIDTH = 780  # px, what GitHub leaves for a page between its margins
_COLOURS = 96  # of a picture: cards and curves have few, and a palette is a third of the bytes
_PAGE = """<style>body{{margin:0;padding:2px 0;background:#fff;color:#1f2328;color-scheme:light;
font:14px system-ui,sans-serif}}table{{border-collapse:collapse;font-size:13px}}td,th{{padding:3px 8px;
text-align:left}}</style>{}"""
_LINK = re.compile(r"\]\((?!\w+:|#)([^)]+)\)")  # to a file
_HEAD = """*What `{notebook}` shows after a run on two cores. [All lessons](../../README.md#the-lessons) ·
[open this one](../../notebooks/{notebook}) after `make lab`.*"""


def main() -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            for path in make(website.EXECUTED, EXAMPLES, browser):
                print(path)
        except LabError as error:
            sys.exit(str(error))
        finally:
            browser.close()


def make(executed: Path, target: Path, browser: Browser) -> list[Path]:
    """Write a page of Markdown and a folder of pictures for each of `LESSONS`; return the pages' paths.

    Raises:
        LabError: a lesson was not run since it was changed.
    """
    shutil.rmtree(target, ignore_errors=True)
    sources = {source.stem: source for source in build.sources()}
    return [_write(name, _shown(sources[name], executed, target, browser), target) for name in LESSONS]


def _shown(source: Path, executed: Path, target: Path, browser: Browser) -> nbformat.NotebookNode:
    (target / source.stem).mkdir(parents=True)
    page = website.page(source, executed / f"{source.stem}.ipynb", target, source.stem)
    for cell in page.cells:
        if cell.cell_type == "markdown":
            cell.source = _LINK.sub(lambda link: _from_here(link[1], target), cell.source)
        for output in cell.get("outputs", []):
            if "text" in output:
                output.text = _anonymous(output.text)
                continue
            data = output.get("data", {})
            if data.get("text/html"):
                output.data = {"image/png": _picture(_anonymous(data["text/html"]), browser)}
            elif data.get("text/plain"):
                data["text/plain"] = _anonymous(data["text/plain"])
    return page


def _write(name: str, page: nbformat.NotebookNode, target: Path) -> Path:
    head = nbformat.v4.new_markdown_cell(_HEAD.format(notebook=f"{name}.ipynb"))
    page.cells.insert(1, head)
    body, resources = MarkdownExporter().from_notebook_node(page, {"output_files_dir": name})
    FilesWriter(build_directory=str(target)).write(body, resources, notebook_name=name)
    return target / f"{name}.md"


def _picture(html: str, browser: Browser) -> str:
    """Draw `html` as a PNG in base64, `_WIDTH` px wide at one and a half times its resolution."""
    page = browser.new_page(viewport={"width": _WIDTH, "height": 10}, device_scale_factor=1.5)
    page.set_content(_PAGE.format(html))
    drawn = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    page.close()
    file = io.BytesIO()
    drawn.quantize(_COLOURS).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def _from_here(link: str, target: Path) -> str:
    """Return a lesson's link to a file, from a page in `target`."""
    if (target / link).exists():
        return f"]({link})"
    return f"]({os.path.relpath(build.FOLDER / link, EXAMPLES)})"


def _anonymous(text: str) -> str:
    """Replace the folders and the name of the machine on which the lesson ran."""
    replacements = {
        str(build.FOLDER.parent): "…",
        str(Path.home()): "~",
        socket.gethostname(): "this-machine",
    }
    for private, public in replacements.items():
        text = re.sub(rf"(?<![\w/]){re.escape(private)}(?![\w-])", public, text)
    return text


if __name__ == "__main__":
    main()
