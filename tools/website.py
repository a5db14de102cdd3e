"""The site: the lessons with the outputs of the last test, and all other pages, as HTML that needs no server.

    python tools/website.py                     lessons from artefacts/solutions; pages to build/site
    python tools/website.py --repository URL    with links to where a page can be edited

`make test` keeps the solved notebooks that it ran, and nothing is run again here. Solutions are folded. Pages
keep the places that they have in the repository, so links between them need no change; a link to another
file of the repository offers it for download.
"""

import argparse
import base64
import hashlib
import itertools
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat.v4 import new_markdown_cell, new_output
from sphinx.cmd.build import build_main as sphinx

import additions
import build
import lesson
from labkit.errors import LabError

ROOT = Path(__file__).resolve().parent.parent
EXECUTED, SITE = ROOT / "artefacts" / "solutions", ROOT / "build" / "site"
PARTS = {  # of the table of contents
    "Lessons": ["notebooks/tour.ipynb", "notebooks/[0-9]*.ipynb"],
    "Recipes": ["notebooks/recipes/README.md", "notebooks/recipes/*.ipynb"],
    "Using the lab": [
        "docs/setups/*.md",
        "docs/troubleshooting.md",
        "docs/data.md",
        "docs/works-with.md",
        "notebooks/own_experiment/README.md",
        "docs/runs.md",
        "docs/verdict.md",
        "docs/settings.md",
        "docs/clusters/README.md",
        "docs/fast-start.md",
    ],
    "Reference": ["docs/glossary.md", "docs/subjects.md", "docs/what-changes.md", "docs/security.md"],
    "Teaching": ["docs/teaching/README.md", "docs/teaching/[0-9]*.md"],
    "The project": [
        "CONTRIBUTING.md",
        "labkit/README.md",
        "benchmarks/README.md",
        "CHANGELOG.md",
        "docs/upstream.md",
        "findings/README.md",
    ],
}
_OTHERS = [
    "*.md",
    "LICENSE",
    "constraints.txt",
    "notebooks/AGENTS.md",
    "docs/**/*",
    "datasets/README.md",
    "notebooks/own_experiment/*.py",
    "notebooks/plain/*",
    "findings/*",
    "benchmarks/_works_with/rows/*.py",
]
_SETTINGS = {
    "project": "Distributed training lab",
    "html_title": "Distributed training lab",
    "root_doc": "README",
    "extensions": "myst_nb",
    "html_theme": "furo",
    "html_static_path": "style",
    "html_css_files": "site.css",
    "html_favicon": "style/icon.svg",
    "html_copy_source": "0",
    "html_show_copyright": "0",
    "html_show_sphinx": "0",
    "nb_execution_mode": "off",
    "nb_code_prompt_show": "Show the solution",
    "nb_code_prompt_hide": "Hide the solution",
    "myst_heading_anchors": "4",
    "exclude_patterns": "downloads/*",
    "suppress_warnings": "myst.header,mystnb.unknown_mime_type,toc.not_included",
}
_EMBEDDED = re.compile(r"\]\(data:image/svg\+xml;base64,([\w+/=]+)\)")
_COLOURS = re.compile(r"\x1b\[[\d;]*[Km]")  # a terminal's yellow cannot be read on white
# JupyterLab's variables, with which the lab's cards are drawn, have the page's colours here.
_STYLE = """
body{--jp-content-font-color1:var(--color-foreground-primary);
--jp-content-font-color2:var(--color-foreground-secondary);
--jp-border-color2:var(--color-background-border);--jp-layout-color1:var(--color-background-primary);
--jp-layout-color2:var(--color-background-border);--jp-brand-color1:var(--color-brand-primary);
--jp-success-color1:light-dark(#1f6f43,#5cc98b);--jp-warn-color0:light-dark(#8a5300,#f0a640);
--jp-error-color1:light-dark(#b3261e,#ff7b72)}
.highlight .gd{color:light-dark(#b3261e,#ff7b72)}.highlight .gi{color:light-dark(#1f6f43,#5cc98b)}
@media (max-width:720px){td code{overflow-wrap:anywhere}}
body[data-theme=light]{color-scheme:light}body[data-theme=dark]{color-scheme:dark}
body[data-theme=auto]{color-scheme:light dark}
.content a{overflow-wrap:anywhere}.content td a{overflow-wrap:break-word}.output.text_html{overflow-x:auto}
@media(min-width:91em){.content{width:54em}}
"""
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16" stroke="#1976d2" fill="#1976d2">'
    '<path d="M4 8h8"/><circle cx="4" cy="8" r="3"/><circle cx="12" cy="8" r="3"/></svg>'
)
# What the theme and the Markdown reader leave without a name, a level or a key to reach it by.
_SPOKEN = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="All pages">',
    '<aside class="toc-drawer">': '<aside class="toc-drawer" aria-label="This page">',
    '<th class="head"><p></p></th>': "<td></td>",
    "<th></th>": "<td></td>",
    "<pre>": '<pre tabindex="0">',
    '<div class="output text_html">': '<div tabindex="0" class="output text_html">',
    '<div class="table-wrapper ': '<div tabindex="0" class="table-wrapper ',
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the site from notebooks that were run.")
    parser.add_argument("--repository", default="", help="https://…, to link the sources of the pages")
    parser.add_argument("--branch", default="main")
    options = parser.parse_args()
    try:
        pages = make(EXECUTED, SITE, repository=options.repository, branch=options.branch)
    except LabError as error:
        sys.exit(str(error))
    print(f"{pages} pages: open {SITE}/README.html")


def make(executed: Path, site: Path, *, repository: str = "", branch: str = "main") -> int:
    """Build the site from the notebooks in `executed`; the number of its pages.

    Raises:
        LabError: a lesson was not run since it was changed, or a page links to something that is not there.
    """
    source = site.with_name(f"{site.name}-source")
    for folder in (source, site):
        shutil.rmtree(folder, ignore_errors=True)
    for pattern in _OTHERS + [one for part in PARTS.values() for one in part if not one.endswith(".ipynb")]:
        for path in filter(Path.is_file, ROOT.glob(pattern)):
            target = source / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
            if repository and path.suffix == ".md":
                with target.open("a") as file:
                    file.write(f"\n[Edit this page]({repository}/edit/{branch}/{path.relative_to(ROOT)})\n")
    (source / "downloads").mkdir()
    (source / "notebooks").mkdir(exist_ok=True)
    for lesson_source in build.sources():
        name = f"{lesson_source.stem}.ipynb"
        shutil.copy(build.FOLDER / name, source / "downloads")
        edit = f"{repository}/edit/{branch}/lessons/{lesson_source.name}" if repository else ""
        shown = page(lesson_source, executed / name, source / "notebooks")
        told = f"{{download}}`Download this lesson as a notebook <../downloads/{name}>`"
        told += f" · [edit it]({edit})" if edit else ""
        told += " · its outputs here come from the last test, on two cores"
        shown.cells.insert(1, new_markdown_cell(told))
        nbformat.write(shown, source / "notebooks" / name)
    (source / "notebooks" / "recipes").mkdir(exist_ok=True)
    for recipe in (build.FOLDER / "recipes").glob("*.ipynb"):  # without outputs
        shown = nbformat.read(recipe, 4)
        shown.metadata.language_info.pygments_lexer = "ipython3"
        nbformat.write(shown, source / "notebooks" / "recipes" / recipe.name)
    with (source / "README.md").open("a") as file:
        file.writelines(_contents(source))
    (source / "style").mkdir()
    (source / "style" / "site.css").write_text(_STYLE)
    (source / "style" / "icon.svg").write_text(_ICON)
    settings = [f"-D{name}={value}" for name, value in _SETTINGS.items()]
    # -W: a link that leads nowhere is an error; --keep-going: all of them are shown.
    if sphinx(["-q", "-W", "--keep-going", "-C", "-j2", "-bhtml", *settings, str(source), str(site)]):
        raise LabError("build the site", "pages have the faults above", "correct their sources")
    for path in ROOT.glob("docs/panel.*"):  # README names them in HTML, in which Sphinx looks for no files
        shutil.copy(path, site / "docs")
    pages = list(site.rglob("*.html"))
    for path in pages:
        text = path.read_text()
        for found, better in _SPOKEN.items():
            text = text.replace(found, better)
        path.write_text(text)
    return len(pages)


def page(source: Path, executed: Path, beside: Path, pictures: str = ".") -> nbformat.NotebookNode:
    """The solved lesson with its outputs, without what asks for a kernel, and with its solutions folded.

    The pictures that its text carries with it become files in `pictures`, a folder in `beside`.

    Raises:
        LabError: it was not run since it was changed.
    """
    solved = build.notebook(additions.complete(source, lesson.read(source)), solutions=True)
    try:
        ran = {cell.id: cell.outputs for cell in nbformat.read(executed, 4).cells if cell.cell_type == "code"}
    except FileNotFoundError:
        ran = {}
    for cell in [cell for cell in solved.cells if cell.cell_type == "code"]:
        if cell.id not in ran:  # ids follow from what is in a cell
            fact = f"{source.stem} was not run since its source was changed"
            raise LabError("build the site", fact, "make test TEST_ARGS='tests/test_notebooks.py'")
        cell.outputs = list(_shown(ran[cell.id]))
        if "solution" in cell.metadata.get("tags", []):
            cell.metadata.tags.append("hide-input")
    solved.metadata.language_info.pygments_lexer = "ipython3"
    for cell in solved.cells:
        cell.source = _EMBEDDED.sub(lambda found: _as_file(found[1], beside, pictures), cell.source)
    return solved


def _as_file(encoded: str, beside: Path, pictures: str) -> str:
    """The Markdown for a picture that a lesson carries with it: MyST and GitHub show files alone."""
    path = Path(pictures) / f"{hashlib.sha256(encoded.encode()).hexdigest()[:12]}.svg"
    (beside / path).write_bytes(base64.b64decode(encoded))
    return f"]({path})"


def _shown(outputs: list[nbformat.NotebookNode]) -> Iterator[nbformat.NotebookNode]:
    """Outputs as a terminal would leave them: lines that were written over are gone; no live widgets."""
    for kind, group in itertools.groupby(outputs, lambda one: one.get("name", one.output_type)):
        if kind == "error":
            text = "\n".join(line for one in group for line in one.traceback)
            yield new_output("stream", name="stderr", text=_COLOURS.sub("", text))
        elif kind in ("stdout", "stderr"):
            text = "".join(one.text for one in group).replace("\r\n", "\n")
            if text := re.sub(r"[^\n]*\r", "", _COLOURS.sub("", text)):
                yield new_output("stream", name=kind, text=text)
        else:
            widgets = "application/vnd.jupyter.widget-view+json"
            yield from (
                one for one in group if one.data.pop(widgets, None) is None or "text/html" in one.data
            )


def _contents(source: Path) -> Iterator[str]:
    """The table of contents, as MyST writes it."""
    for part, patterns in PARTS.items():
        pages = [path for one in patterns for path in sorted(source.glob(one))]
        names = "\n".join(str(path.relative_to(source).with_suffix("")) for path in pages)
        yield f"\n```{{toctree}}\n:hidden:\n:caption: {part}\n\n{names}\n```\n"


if __name__ == "__main__":
    main()
