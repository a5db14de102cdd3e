"""What the build adds to a lesson: pictures, the plain script, links; and what it links to."""

import ast
import base64
import re

import pytest

import additions
import build
import lesson
from labkit.errors import LabError
from labs import python
from lesson import Cell

pytestmark = [pytest.mark.slow, pytest.mark.covers("tools/", "docs/subjects.md")]


ROOT = build.FOLDER.parent
LESSONS = {path.stem: lesson.read(path) for path in build.sources()}
HEAD = Cell("markdown", "# 07 · Sums\n**Time** about 5 minutes · **Needs** 00")
MARKUP = re.compile(r"```.*?```|<[^>]*>|!?\[([^\]]*)\]\([^)]*\)", re.DOTALL)


@pytest.fixture
def source(tmp_path):
    for name, text in {
        "lessons/images/two.svg": "<svg/>",
        "notebooks/plain/07_sums.py": '"""A sum."""\nprint(1 + 1)\n',
        "docs/glossary.md": "# Glossary\n\n### rank\nA number.\n\n### global batch\nAll rows.\n",
        "docs/subjects.md": "| Sum | [`ray.get`](https://ray/get) · [`ray.put(x=)`](https://ray/put) | |\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "lessons" / "07_sums.py"


def complete(source, *cells):
    return [cell.source for cell in additions.complete(source, [HEAD, *cells])][1:]


def test_pictures_terms_the_plain_script_and_links_are_in_the_notebook(source):
    picture, term, call, plain, links = complete(
        source,
        Cell("markdown", "![two workers](images/two.svg)"),
        Cell("markdown", "**Ranks** and **ranks**, a **global batch**, **no term**"),
        Cell("code", "ray.get(x)"),
        Cell("markdown", "Without the lab:", ("plain",)),
        Cell("markdown", "Pages:", ("links",)),
    )
    assert picture == f"![two workers](data:image/svg+xml;base64,{base64.b64encode(b'<svg/>').decode()})"
    assert term == (  # the first use of each
        "[**Ranks**](../docs/glossary.md#rank) and **ranks**, "
        "a [**global batch**](../docs/glossary.md#global-batch), **no term**"
    )
    assert "(../../docs/glossary.md#rank)" in additions.deeper(term)
    assert call == "ray.get(x)"
    assert plain == 'Without the lab:\n\n```python\n"""A sum."""\nprint(1 + 1)\n```'
    assert links == "Pages:\n\n[`ray.get`](https://ray/get)"
    with pytest.raises(LabError, match="three.svg"):
        complete(source, Cell("markdown", "![three](images/three.svg)"))


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_is_not_dense(name):
    """At most one parenthesis in 150 words, and one sentence in ten with less than six words."""
    shown = [cell for cell in LESSONS[name] if cell.kind == "markdown" and not cell.is_note]
    texts = [MARKUP.sub(r"\1", cell.source) for cell in shown]
    words = sum(len(text.split()) for text in texts)
    prose = " ".join(line for text in texts for line in text.splitlines() if not re.match(r"[#|]", line))
    sentences = [len(part.split()) for part in re.split(r"(?<=[.!?])\s+|\n\n", prose) if part.strip()]
    short = sum(length < 6 for length in sentences)
    assert 150 * re.sub(r"`[^`]*`", "", prose).count("(") <= words
    assert 10 * short <= len(sentences)


def test_a_lesson_has_at_most_forty_new_names():
    """Names in code font that no earlier lesson has, except those in a table of older tutorials."""
    earlier: set[str] = set()
    for name in sorted(name for name in LESSONS if name[0].isdigit()):
        new = names_in_code_font(LESSONS[name]) - earlier
        assert len(new) <= 40, f"{name}: {sorted(new)}"
        earlier |= new


def names_in_code_font(cells):
    shown = [cell.source for cell in cells if cell.kind == "markdown" and not cell.is_note]
    text = re.sub(r"(?s)```.*?```|\| older[^\n]*(\n\|[^\n]*)*", "", "\n".join(shown))
    names = re.findall(r"`([A-Za-z_][\w.]*)[^`\n]*`", text)
    return {name.rpartition(".")[2] for name in names if not name.endswith((".py", ".ipynb"))}


@pytest.mark.parametrize("name", LESSONS)
def test_each_exercise_has_stars(name):
    text = "\n".join(cell.source for cell in LESSONS[name] if cell.kind == "markdown")
    assert all(re.findall(r"(?m)^### Exercise \S+ *(★*)", text))


def test_the_loop_of_lesson_03b_is_the_file_that_later_lessons_import():
    (cell,) = (c for c in LESSONS["03b_checkpoints"] if c.source.startswith("%%writefile my_loop.py\n"))
    written = cell.source.partition("\n")[2] + "\n"
    assert written == (build.FOLDER / "my_loop.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", LESSONS)
def test_each_term_is_in_the_glossary(name):
    """A term is a bold word that does not begin or end like a sentence."""
    text = "\n".join(cell.source for cell in LESSONS[name] if cell.kind == "markdown")
    bold = re.findall(r"(?<!\*)\*\*([a-z][^*\n]*[^*.:\s]|[A-Z]{2,5})\*\*", text)
    terms = set(additions.glossary(ROOT))
    assert [word for word in bold if not additions.term_of(word, terms)] == []


_RESOLVE = """
import sys
from importlib import import_module
for name in sys.argv[1:]:
    path, *parts = name.split(".")
    found = import_module(path)
    for part in parts:
        path = f"{path}.{part}"
        found = getattr(found, part, None) or import_module(path)
"""


@pytest.mark.parametrize("engine", ["ray torch", "tensorflow keras", "pyspark pyarrow"])
def test_each_listed_name_exists(engine):
    """In a process of its own, since torch and TensorFlow are never in one. The links are not opened."""
    listed = [name for name in additions.official_pages(ROOT) if name.partition(".")[0] in engine.split()]
    assert listed
    ran = python(_RESOLVE, *listed, timeout=800)
    assert ran.returncode == 0, ran.stdout[-800:]


@pytest.mark.parametrize("name", LESSONS)
def test_each_call_of_ray_and_spark_is_listed(name):
    linked = set(additions.official_pages(ROOT))
    missing = set()
    for cell in LESSONS[name]:
        if cell.kind == "code" and not cell.is_claim:
            missing |= {call for call in calls_of_engines(cell.source) if not is_linked(call, linked)}
    assert missing - {"ray.tune", "ray.cloudpickle", "pyspark.cloudpickle"} == set()  # a module; a detail


def calls_of_engines(code: str) -> set[str]:
    """Return what `code` imports from Ray and Spark, and calls of Ray by their full names."""
    calls = set()
    for node in ast.walk(lesson.parse(code)):
        if isinstance(node, ast.ImportFrom) and re.match(r"(ray|pyspark)\b", node.module or ""):
            calls |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call):
            called = re.sub(r"^tune\.", "ray.tune.", ast.unparse(node.func))
            calls |= {called} if re.fullmatch(r"ray(\.\w+)+", called) else set()
    return calls


def is_linked(call: str, linked: set[str]) -> bool:
    """Whether a call, its class, or one of its methods is in `linked`."""
    return any(f"{call}.".startswith(f"{name}.") or f"{name}.".startswith(f"{call}.") for name in linked)
