"""docs/subjects.md: a subject's calls are in the code of the place it names, and the suite runs the place."""

import itertools
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import test_notebooks
import test_plain

import additions
import build
import lesson
from lesson import Cell

ROOT = build.FOLDER.parent
PAGE = ROOT / "docs" / "subjects.md"
HEADING = re.compile(r"(?m)^#+ (.+)$")
LINKED_PAGES = ("ray", "torch", "tensorflow", "keras", "pyspark", "pyarrow")
# Functions without an official page.
WITHOUT_PAGE = {
    "ray.cloudpickle.dumps",
    "pyspark.ml.torch.distributor._get_spark_partition_data_loader",
}


@dataclass(frozen=True)
class Subject:
    """One row of the page: its calls, and its places as (title, path)."""

    text: str
    calls: tuple[str, ...]
    places: tuple[tuple[str, Path], ...]

    def __str__(self) -> str:
        return self.text


def subjects() -> list[Subject]:
    """Return the subjects of the page."""
    listed = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 3 or cells[0] == "subject" or set(line) <= set("|-"):
            continue
        text, calls, places = cells
        links = re.findall(r"\[((?:[^\]`]|`[^`]*`)+)\]\(([^)]+)\)", places)
        targets = tuple((title, (PAGE.parent / path).resolve()) for title, path in links)
        listed.append(Subject(text, tuple(re.findall(r"`([^`]+)`", calls)), targets))
    return listed


SUBJECTS = subjects()


@cache
def cells_of(place: Path) -> list[Cell]:
    """Return the cells of a lesson or a recipe, from the source of the notebook `place`."""
    folder = ROOT / "lessons" / "recipes" if place.parent.name == "recipes" else ROOT / "lessons"
    return lesson.read(folder / f"{place.stem}.py")


def code_of(cells: list[Cell], title: str = "") -> str:
    """Return the code that a reader runs, of the section `title` or of everything.

    A claim isn't part of it, because no reader sees it. In the title of an exercise, what follows the stars
    can be left out.
    """
    section, code = "", []
    for cell in cells:
        if cell.kind == "markdown":
            headings = HEADING.findall(cell.source)
            section = headings[-1] if headings else section
        elif not cell.is_claim and title in ("", section, section.partition(" ★")[0]):
            code.append(re.sub(r"\A%%writefile .*\n", "", cell.source))
    return "\n".join(code)


def missing(subject: Subject) -> list[str]:
    """Return the calls of a subject that none of its places has."""
    calls = list(subject.calls)
    for title, place in subject.places:
        if place.suffix == ".py":
            code = around = place.read_text(encoding="utf-8")
        else:
            section = "" if place.parent.name == "recipes" else title.partition(" · ")[2]
            code, around = code_of(cells_of(place), section), code_of(cells_of(place))
            assert code, f"{place.name} has no code in the section {section!r}"
        calls = [call for call in calls if not has(code, around, call)]
    return calls


def has(code: str, around: str, call: str) -> bool:
    """Whether a piece of code, which is part of the code `around` it, has a call or a quoted text."""
    if call.startswith('"'):
        return call.strip('"') in " ".join(additions.texts(code))
    return additions.uses(_names(code, around), call, _names(around))


_names = cache(additions.names)


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_a_subject_has_a_place_whose_code_has_its_calls(subject):
    assert subject.calls and subject.places
    assert missing(subject) == []


def test_the_suite_runs_each_place():
    runs = [getattr(parameter, "values", [parameter])[0] for parameter in test_notebooks.RUNS]
    # A reader's notebook becomes the solved one when its exercises are solved, and that one is run.
    notebooks = {build.FOLDER / f"{name.removeprefix('solutions/')}.ipynb" for name in runs}
    places = {place for subject in SUBJECTS for _, place in subject.places}
    assert places - notebooks - {*test_plain.SCRIPTS} == set()


def test_each_recipe_and_each_lesson_is_the_place_of_a_subject():
    places = {place for subject in SUBJECTS for _, place in subject.places}
    recipes = {build.FOLDER / "recipes" / f"{name}.ipynb" for name in test_notebooks.RECIPES}
    lessons = {build.FOLDER / f"{name}.ipynb" for name in test_notebooks.LESSONS if name != "tour"}
    assert recipes | lessons <= places


def test_a_call_of_an_engine_has_its_official_page():
    linked = additions.official_pages(ROOT)
    calls = {call.partition("(")[0] for subject in SUBJECTS for call in subject.calls}
    engines = {call for call in calls if call.partition(".")[0] in LINKED_PAGES}
    assert engines - linked.keys() == WITHOUT_PAGE


def test_each_place_is_named_as_it_is_called():
    for title, place in itertools.chain.from_iterable(subject.places for subject in SUBJECTS):
        if place.parent.name == "recipes":
            assert f"# {title.removeprefix('recipe: ')}\n" in f"{cells_of(place)[0].source}\n"
        elif place.suffix == ".ipynb":
            assert title.partition(" · ")[0] == lesson.number(place)
