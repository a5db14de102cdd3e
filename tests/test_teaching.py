"""The teacher's pages in docs/teaching: in step with the lessons, their exercises and their checks."""

import ast
import re

import pytest

import build
import lesson
from course.exercises import registry

ROOT = build.FOLDER.parent
FOLDER = ROOT / "docs" / "teaching"
PLANS = (FOLDER / "README.md").read_text(encoding="utf-8")
CELLS = {lesson.number(path): lesson.read(path) for path in build.sources() if path.stem != "tour"}
CLOSING = {"Key points", "Official pages", "Reference", "Stop", "Without the lab"}  # nothing is taught there


@pytest.fixture(params=CELLS)
def number(request):
    return request.param


def page(number):
    return (FOLDER / f"{number}.md").read_text(encoding="utf-8")


def rows(text, *, below):
    """The cells of each row of a table whose first heading is `below`."""
    tables = re.findall(rf"(?m)^\| {below} \|.*\n\|[-|]+\n((?:\|.*\n?)*)", text)
    return [[cell.strip() for cell in line[1:-1].split(" | ")] for t in tables for line in t.splitlines()]


def test_each_lesson_has_a_page_and_each_page_a_lesson():
    assert sorted(path.stem for path in FOLDER.glob("[0-9]*.md")) == sorted(CELLS)


def test_a_page_says_what_each_section_is_for(number):
    headings = [
        heading
        for cell in CELLS[number]
        if cell.kind == "markdown"
        for heading in re.findall(r"(?m)^## (.+)$", cell.source)
    ]
    listed = rows(page(number), below="section")
    assert [name for name, _ in listed] == [name for name in headings if name not in CLOSING]
    assert all(purpose for _, purpose in listed)


def test_a_page_has_every_exercise_of_its_lesson(number):
    headings = re.compile(r"(?m)^### (?:Exercise )?(\d\d[bc]?-\d)(?: ★+)?( · .+)$")
    in_lesson = [heading for cell in CELLS[number] for heading in headings.findall(cell.source)]
    assert sorted(headings.findall(page(number))) == sorted(in_lesson)
    ids = [exercise.id for each in registry.lessons() if each.number == number for exercise in each.exercises]
    assert sorted(id for id, _ in in_lesson) == sorted(ids)


def test_messages_on_a_page_are_those_of_the_check(number):
    path = ROOT / "lessons" / "checks" / f"lesson_{number}.py"
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    messages = [cells[0] for cells in rows(page(number), below="the check says")]
    quoted = [piece.strip(" ,") for message in messages for piece in message.split("…")]
    assert quoted
    assert [piece for piece in quoted if not any(piece in text for text in texts)] == []


def test_a_plan_adds_up_and_leaves_time_for_each_core():
    plans = re.split(r"(?m)^### ", PLANS)[1:]
    plans = {plan.partition("\n")[0]: rows(plan, below="minutes") for plan in plans}
    plans = {name: plan for name, plan in plans.items() if plan}
    lengths = {name: int(re.search(r"(\d+) minutes", name)[1]) for name in plans}
    assert len(plans) >= 4
    assert {name: sum(int(minutes) for minutes, _ in plan) for name, plan in plans.items()} == lengths
    for minutes, topic in (row for plan in plans.values() for row in plan):
        for number in re.findall(r"\[(\d\d[bc]?)\]\(\d\d[bc]?\.md\), core", topic):
            assert int(minutes) >= lesson.minutes(CELLS[number]), topic
