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
    used = _names("\n".join(cell.source for cell in cells if cell.kind == "code"))
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
            links = (f"[`{name}`]({url})" for name, url in api(root).items() if _uses(used, name))
            text = f"{text}\n\n{' · '.join(links)}"
        done.append(replace(cell, source=text))
    return done


def deeper(text: str) -> str:
    """The Markdown `text` for a notebook one folder further down."""
    return text.replace("](../docs/", "](../../docs/")


@cache
def glossary(root: Path) -> dict[str, str]:
    """Term → definition, in the glossary's order: its second-level headings and what is below them."""
    return dict(re.findall(r"(?m)^### (.+)\n((?:.+\n?)+)", _optional(root / "docs" / "glossary.md")))


@cache
def api(root: Path) -> dict[str, str]:
    """The full name of each engine's call or class that a lesson teaches → its official page."""
    return dict(re.findall(r"(?m)^\| `([\w.]+)` \| <(\S+)> \|", _optional(root / "docs" / "api.md")))


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


def _names(code: str) -> set[str]:
    """What `code` imports and names, in full (``ray.train.Result``), and each attribute as ``.map``."""
    nodes, full = list(ast.walk(lesson.parse(code))), {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            full |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            full |= {name.asname: name.name for name in node.names if name.asname}
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute):
            full.setdefault(ast.unparse(node.targets[0]), ast.unparse(node.value))  # nn = torch.nn
    found = set(full.values())
    for node in nodes:
        if isinstance(node, ast.Attribute):
            root, *rest = ast.unparse(node).split(".")
            found |= {".".join([full.get(root, root), *rest]), f".{node.attr}"}
    return {re.sub(r"^tensorflow\.keras\.", "keras.", name) for name in found}


def _uses(used: set[str], name: str) -> bool:
    """Whether `used` has what has the full `name`. A method has no full name: it is used with its package."""
    package, parent, last = name.rsplit(".", 2) if name.count(".") > 1 else ("", *name.split("."))
    if parent[0].isupper():
        return f".{last}" in used and any(one.startswith(f"{package}.") for one in used)
    return name in used


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
