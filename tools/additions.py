"""What the build adds to a lesson's cells: pictures, the script without the lab, and links."""

import ast
import base64
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import lesson
from labkit.errors import LabError
from lesson import Cell

_PICTURE = re.compile(r"\]\((images/[\w-]+\.svg)\)")
BOLD = re.compile(r"(?<!\[)\*\*([^*]+?)\*\*(?!\])")


def complete(source: Path, cells: list[Cell]) -> list[Cell]:
    """The cells of the lesson `source`, with the additions. Pictures are in ``images`` next to it.

    Raises:
        LabError: a picture or the script is missing.
    """
    root = source.parent.parent.parent if lesson.is_recipe(source) else source.parent.parent
    used = names("\n".join(cell.source for cell in cells if cell.kind == "code" and not cell.is_claim))
    terms = set(glossary(root))
    done = []
    for cell in cells:
        text = cell.source
        if cell.kind == "markdown" and not cell.is_note:  # a term is linked where a learner sees it first
            text = BOLD.sub(lambda found: _linked(found, terms), text)
            text = _PICTURE.sub(lambda found: f"]({_embedded(source, found[1])})", text)
        if "plain" in cell.tags:
            script = _read(source, root / "notebooks" / "plain" / source.name)
            text = f"{text}\n\n```python\n{script.strip()}\n```"
        if "links" in cell.tags:
            links = _links(used, official_pages(root))
            text = f"{text}\n\n{' · '.join(links)}"
        done.append(replace(cell, source=text))
    return done


def _links(used: set[str], pages: dict[str, str]) -> list[str]:
    """Return a link for each page of what is used; a class and its methods often share one."""
    linked: dict[str, str] = {}
    for call, page in pages.items():
        if uses(used, call):
            linked.setdefault(page, f"[`{call}`]({page})")
    return list(linked.values())


def deeper(text: str) -> str:
    """The Markdown `text` for a notebook one folder further down."""
    return text.replace("](../docs/", "](../../docs/")


@cache
def glossary(root: Path) -> dict[str, str]:
    """Term → definition, in the glossary's order: its second-level headings and what is below them."""
    return dict(re.findall(r"(?m)^### (.+)\n((?:.+\n?)+)", _optional(root / "docs" / "glossary.md")))


@cache
def official_pages(root: Path) -> dict[str, str]:
    """Return the page of each call in ``docs/subjects.md``, by the call's full name, sorted by name."""
    linked = re.findall(r"\[`([\w.]+)[^`]*`\]\((https:[^)\s]+)\)", _optional(root / "docs" / "subjects.md"))
    return dict(sorted(linked, key=lambda pair: pair[0].lower()))


def term_of(bold: str, terms: set[str]) -> str | None:
    """The glossary's term for a word in bold, which may be in the plural; None if there is none."""
    word = " ".join(bold.split()).strip("`.,:").lower()
    forms = {word, word.removesuffix("s"), word.removesuffix("es")}
    return next((term for term in terms if term.lower() in forms), None)


def _linked(found: re.Match[str], terms: set[str]) -> str:
    """A bold term as a link to the glossary; each is taken out of `terms`, so the first use is linked."""
    term = term_of(found[1], terms)
    if term is None:
        return found[0]
    terms.remove(term)
    anchor = re.sub(r"[^\w-]", "", term.lower().replace(" ", "-"))
    return f"[{found[0]}](../docs/glossary.md#{anchor})"


def names(code: str, imports: str = "") -> set[str]:
    """Return the names in `code`: in full, attributes as ``.map``, and arguments as ``.map(num_cpus=)``.

    The code in `imports` comes before: what it imports may be named without its module.
    """
    nodes = list(ast.walk(lesson.parse(code)))
    full_names = _full_names([*ast.walk(lesson.parse(imports)), *nodes])
    named = set()
    for node in nodes:
        if isinstance(node, (ast.Name, ast.Attribute)):
            named |= _forms(node, full_names)
        elif isinstance(node, ast.Call):
            callees = _forms(node.func, full_names)
            arguments = [keyword.arg for keyword in node.keywords if keyword.arg]
            named |= {f"{callee}({argument}=)" for callee in callees for argument in arguments}
    return named


def texts(code: str) -> list[str]:
    """Return the texts in `code`, such as names of environment variables."""
    nodes = ast.walk(lesson.parse(code))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def uses(named: set[str], call: str, around: set[str] | None = None) -> bool:
    """Whether `named` has the `call`, which is written in full.

    The object that a method is called on has any name, so a method only has to come with something of its
    package, which may be named in the code `around` it.
    """
    if call in named:
        return True
    parent, _, method = call.rpartition(".")
    package, _, kind = parent.rpartition(".")
    if not kind[:1].isupper():
        return False
    return f".{method}" in named and any(name.startswith(f"{package}.") for name in around or named)


def _full_names(nodes: list[ast.AST]) -> dict[str, str]:
    """Return the full name of each name that an import, or an assignment such as ``nn = torch.nn``, makes."""
    full_names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            full_names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            full_names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute):
            full_names.setdefault(ast.unparse(node.targets[0]), ast.unparse(node.value))
    return full_names


def _forms(node: ast.AST, full_names: dict[str, str]) -> set[str]:
    """Return how a name or an attribute may be written in ``docs/subjects.md``."""
    root, *rest = ast.unparse(node).split(".")
    full_name = ".".join([full_names.get(root, root), *rest])
    forms = {re.sub(r"^tensorflow\.keras\.", "keras.", full_name)}
    if isinstance(node, ast.Attribute):
        forms.add(f".{node.attr}")
    return forms


def _embedded(source: Path, name: str) -> str:
    # A notebook that is copied, mailed or converted still has it. JupyterLab shows no SVG attachments.
    text = _read(source, source.parent / name)
    return f"data:image/svg+xml;base64,{base64.b64encode(text.encode()).decode()}"


def _read(source: Path, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise LabError(
            f"build the lesson {source.name}", f"{path.name}: {error.strerror}", "add the file"
        ) from error


def _optional(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
