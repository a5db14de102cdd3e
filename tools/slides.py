"""Slides: one deck of reveal.js for each lesson, made by nbconvert from the lesson's source.

    python tools/slides.py          all decks to build/slides; press S in one for the speaker's view
    python tools/slides.py 03       one of them

A deck has what a class looks at together: headings with their first sentence, pictures, small tables, short
code, predictions, exercises and the key points. Notes tagged ``instructor`` are the
speaker's notes. Decks need no network: reveal.js is copied from the package sphinx-revealjs.
"""

import re
import shutil
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import nbformat
from jinja2 import DictLoader
from nbconvert import SlidesExporter
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import additions
import build
import lesson
from lesson import Cell

SLIDES = build.FOLDER.parent / "build" / "slides"
_LONGEST = 16  # lines of code, or rows of a table, on a slide
_SKIPPED = {"claim", "links", "plain", "solution"}
_CLOSING = {"Stop", "Official pages", "Reference"}  # sections with nothing to show
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!data:)[^)]*\)")
_PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_TABLE = re.compile(r"(?m)(?:^\|.*\n?)+")
_ASKED = re.compile(r"\b(?:check|hint|reveal)\(")
_TEMPLATE = """
{%- extends 'reveal/index.html.j2' -%}
{% block html_head_js %}{% endblock %}
{% block html_head_js_mathjax %}{% endblock %}
{% block html_head_css %}<style>
.reveal .slides{text-align:left}.reveal img{display:block;margin:0 auto;width:100%;max-height:560px}
.reveal .slides :is(h1,h2,h3){text-transform:none}
:root{--jp-content-font-size1:26px;--jp-ui-font-size1:26px;--jp-code-font-size:18px}
.reveal .jp-Cell{padding:4px 0;overflow:visible}.reveal pre{width:100%;box-shadow:none;margin:0}
.reveal .jp-RenderedHTMLCommon table{font-size:22px}
</style>{% endblock %}
{% block footer_js %}
<script src="reveal/dist/reveal.js"></script>
<script src="reveal/plugin/notes/notes.js"></script>
<script>Reveal.initialize({hash: true, slideNumber: "c/t", width: 1280, height: 720,
transition: "none", plugins: [RevealNotes]});</script>
{% endblock %}
"""


def main(numbers: list[str]) -> None:
    chosen = [path for path in build.sources() if not numbers or lesson.number(path) in numbers]
    for target in make(chosen, SLIDES):
        print(target)


def make(sources: list[Path], folder: Path) -> list[Path]:
    """Write the decks of these lessons into `folder`, with all that they load; return their paths."""
    reveal = resources.files("sphinx_revealjs") / "_static" / "revealjs"
    with resources.as_file(reveal) as original:
        for part in ("dist", "plugin/notes"):
            ignored = shutil.ignore_patterns("*.map", "*.esm.js")
            shutil.copytree(original / part, folder / "reveal" / part, ignore=ignored, dirs_exist_ok=True)
        shutil.copy(original / "LICENSE", folder / "reveal")
    exporter = SlidesExporter(
        extra_loaders=[DictLoader({"deck.html.j2": _TEMPLATE})],
        template_file="deck.html.j2",
        reveal_url_prefix="reveal",
        reveal_theme="white",  # the default asks Google for a font
        exclude_input_prompt=True,
    )
    targets = []
    for source in sources:
        page, _ = exporter.from_notebook_node(deck(source), {"metadata": {"name": source.stem}})
        targets.append(folder / f"{source.stem}.html")
        targets[-1].write_text(page, encoding="utf-8")
    return targets


def deck(source: Path) -> nbformat.NotebookNode:
    """Make the slides of a lesson, as a notebook with nbconvert's metadata."""
    made = new_notebook(metadata={"language_info": {"name": "python", "pygments_lexer": "ipython3"}})
    for slide_type, text, is_code in _slides(additions.complete(source, lesson.read(source))):
        new = new_code_cell if is_code else new_markdown_cell
        made.cells.append(new(text, metadata={"slideshow": {"slide_type": slide_type}}))
    return made


def _slides(cells: list[Cell]) -> Iterator[tuple[str, str, bool]]:
    """Yield (nbconvert's type of slide, text, whether it's code) for each cell of the deck."""
    section = ""
    sentence = ""  # that introduces the next code
    room = 0  # lines of code that still fit on the slide
    for cell in cells:
        text = _LINK.sub(r"\1", cell.source)
        if cell.is_heading:
            section = text.partition("\n")[0].lstrip("# ")
        if _SKIPPED & set(cell.tags) or section in _CLOSING:
            continue
        if cell.kind == "code":
            if "predict(" in text and "choices=" in text:
                yield "-", text[text.index("predict(") :], True
            elif "predict(" not in text and _is_short(text) and not _ASKED.search(text):
                lines = len(text.splitlines())
                starts = bool(sentence) or lines > room
                if starts and lines == 1 and not sentence:
                    continue  # a single line says nothing by itself
                if sentence:
                    yield "subslide", sentence, False
                yield "subslide" if starts and not sentence else "-", text, True
                sentence = ""
                if starts:
                    room = _LONGEST
                room -= lines + 1
        elif cell.is_note:
            yield "notes", text, False
        elif text.startswith("# "):
            yield "slide", text, False
        elif "prediction" in cell.tags:
            yield "subslide", text, False
            room = 0
            sentence = ""
        else:
            shown = list(_of_markdown(text))
            yield from shown
            room = _LONGEST - 4 if cell.is_heading and len(shown) == 1 else 0
            sentence = "" if cell.is_heading else _first_sentence(text)


def _of_markdown(text: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the heading with its first sentence, and each picture and small table on its own slide."""
    if text.startswith("#"):
        heading, _, rest = text.partition("\n")
        rest = re.sub(r"(?ms)^\|.*", "", rest) if "Key points" in heading else _first_sentence(rest)
        yield "slide" if heading.startswith("## ") else "subslide", f"{heading}\n\n{rest}", False
        if "Key points" in heading:
            return
    pictures = _PICTURE.findall(text)
    tables = filter(_is_short, _TABLE.findall(text))
    for shown in (*pictures, *tables):
        yield "subslide", shown, False


def _is_short(text: str) -> bool:
    return len(text.splitlines()) <= _LONGEST


def _first_sentence(text: str) -> str:
    """Return the first sentence of the first paragraph that is plain text."""
    for paragraph in text.split("\n\n"):
        line = " ".join(paragraph.split())
        if line and line[0] not in "#|!>-":
            return re.split(r"(?<=[.?!])\s", line, maxsplit=1)[0]
    return ""


if __name__ == "__main__":
    main(sys.argv[1:])
