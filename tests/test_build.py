"""The build of lessons: what it makes, what it refuses, and that it never loses a learner's work."""

import re
import subprocess
from pathlib import Path

import nbformat
import pytest

import build
import lesson
from labkit.errors import LabError

pytestmark = pytest.mark.slow

EXAMPLES = build.FOLDER.parent / "docs" / "examples"


HEAD = """\
# %% [markdown]
# # 07 · A lesson
#
# **You will be able to** add. · **Time** about 5 minutes · **Needs** 00
"""
BODY = """
# %% [markdown]
# ## Sums
# A sum is a sum.

# %%
1 + 1

# %% [markdown] tags=["prediction"]
# **Before you go on:** how much is it?

# %% [markdown]
# ### Exercise 7-1 · Twice

# %%
twice = ...  # your answer

# %% tags=["solution"]
twice = 2

# %%
check("07-1", twice)

# %%
1 + 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lessons").mkdir()
    (tmp_path / "lessons" / "07_sums.py").write_text(HEAD + BODY)
    (tmp_path / "notebooks").mkdir()
    return tmp_path / "notebooks"


def learners(folder: Path) -> Path:
    return folder / "07_sums.ipynb"


def mine(folder: Path) -> list[Path]:
    return list(folder.glob("*.mine-*.ipynb"))


def edit(path: Path, number: int, source: str) -> None:
    """What JupyterLab's save does after a learner typed into one cell and ran it."""
    written = nbformat.read(path, as_version=4)
    outputs = [nbformat.v4.new_output("stream", text="4\n")]
    written.cells[number] |= {"source": source, "execution_count": 1, "outputs": outputs}
    written.metadata.language_info = {"name": "python", "version": "3.11.9", "file_extension": ".py"}
    nbformat.write(written, path)


def test_builds_both_and_they_differ_in_solutions_only(folder):
    assert len(build.build(folder)) == 2
    plain = nbformat.read(learners(folder), as_version=4)
    solved = nbformat.read(folder / "solutions" / "07_sums.ipynb", as_version=4)
    nbformat.validate(plain)
    assert [c for c in solved.cells if "solution" not in c.metadata.get("tags", [])] == plain.cells
    assert len(solved.cells) == len(plain.cells) + 1
    assert plain.metadata.kernelspec.name == "python3"
    assert plain.cells[3].metadata.tags == ["prediction"]


def test_claims_are_for_tests_alone(tmp_path):
    path = tmp_path / "07_sums.py"
    claims = '\n# %% tags=["claim"]\nassert twice == 2\n\n# %% tags=["claim", "timed"]\nassert fast < slow\n'
    path.write_text(HEAD + BODY + claims)
    cells = lesson.read(path)
    for solutions in (False, True):
        assert "assert" not in nbformat.writes(build.notebook(cells, solutions=solutions))
    for timed, last in ((False, "assert twice == 2"), (True, "assert fast < slow")):  # no test runs that one
        assert build.notebook(cells, solutions=True, claims=True, timed=timed).cells[-1].source == last


def test_a_teachers_note_is_on_the_teachers_page_alone(folder):
    page = folder.parent / "docs" / "teaching" / "07.md"
    page.parent.mkdir(parents=True)
    page.write_text(f"# Teaching 07\n\n{build.NOTES}- old\n\n## When you are late\nGo home.\n")
    source = folder.parent / "lessons" / "07_sums.py"
    note = '# %% [markdown] tags=["instructor"]\n# **A sum?** Say:\n# "Add them."\n\n'
    source.write_text(HEAD + BODY.replace("# %%\n1 + 1\n", f"# %%\n1 + 1\n\n{note}", 1))
    assert any("docs/teaching/07.md" in line for line in build.differences(folder))
    build.build(folder)
    assert '\n- **A sum?** Say: "Add them."\n\n## When you are late\nGo home.\n' in page.read_text()
    assert build.differences(folder) == []
    assert not any("Add them" in path.read_text() for path in folder.rglob("*.ipynb"))


def test_readmes_table_has_the_minutes_of_the_head(folder):
    readme = folder.parent / "README.md"
    row = "| [07 Sums](notebooks/07_sums.ipynb) | sums | {} |\n"
    # Another table has a link to the lesson as well, and no minutes.
    other = "| you | start at |\n|---|---|\n| add | [07](notebooks/07_sums.ipynb) |\n| rest | home |\n"
    readme.write_text(f"{other}\n{row.format('95 min')}")
    assert any("README.md" in line for line in build.differences(folder))
    build.build(folder)
    assert readme.read_text() == f"{other}\n{row.format('5 min')}"


def test_a_build_strips_outputs_of_an_unchanged_notebook(folder):
    build.build(folder)
    built = learners(folder).read_text()
    edit(learners(folder), 2, "1 + 1")
    assert build.differences(folder) == []  # outputs are no change of the source
    build.build(folder)
    assert learners(folder).read_text() == built
    assert not mine(folder)


@pytest.mark.parametrize("spoil", ["edited", "without metadata", "not a notebook"])
def test_what_a_learner_wrote_is_kept(folder, spoil):
    build.build(folder)
    edit(learners(folder), 5, "twice = 3")
    build.build(folder)
    (earlier,) = mine(folder)
    edit(learners(folder), 5, "twice = 1 + 1")
    if spoil == "without metadata":
        written = nbformat.read(learners(folder), as_version=4)
        written.metadata = {}
        nbformat.write(written, learners(folder))
    elif spoil == "not a notebook":
        learners(folder).write_text("half of a no")
    before = learners(folder).read_bytes()
    printed = build.build(folder)
    (kept,) = set(mine(folder)) - {earlier}  # no kept file replaces another one
    assert kept.read_bytes() == before
    assert any(kept.name in line for line in printed)
    assert build.differences(folder) == []


def test_stale_leaves_a_learners_work_until_the_lesson_changes(folder):
    build.build(folder)
    edit(learners(folder), 5, "twice = 1 + 1")
    before = learners(folder).read_bytes()
    assert build.build(folder, only_stale=True) == []
    assert learners(folder).read_bytes() == before

    source = folder.parent / "lessons" / "07_sums.py"
    source.write_text(source.read_text().replace("A sum is a sum.", "A sum is what you get."))
    build.build(folder, only_stale=True)
    assert [kept.read_bytes() for kept in mine(folder)] == [before]
    assert "what you get" in learners(folder).read_text()
    learners(folder).unlink()
    assert build.build(folder, only_stale=True) == [f"built {folder.name}/07_sums.ipynb"]


def test_differences_are_found(folder):
    build.build(folder)
    edit(learners(folder), 2, "1 + 2")
    (folder / "08_gone.ipynb").write_text(learners(folder).read_text())
    edited, orphan = sorted(build.differences(folder))
    assert "07_sums.ipynb" in edited and "cell 3" in edited and "08_gone" in orphan


REFUSED = [
    ("sums.py", HEAD + BODY, "NN_name.py"),
    ("08_sums.py", HEAD + BODY, "'# 08 ·'"),
    ("07_sums.py", HEAD.replace("**Time**", "Time") + BODY, "how long it takes"),
    ("07_sums.py", HEAD.replace("**You will be able to**", "You") + BODY, "lesson you can"),
    ("07_sums.py", "# %%\n1 + 1\n", "first cell lacks"),
    ("07_sums.py", HEAD + BODY + '\n# %% tags=["solutoin"]\n1\n', "unknown tag 'solutoin'"),
    ("07_sums.py", HEAD + BODY + "\n# %%\n" + "x = 1\n" * 31, "31 lines"),
    ("07_sums.py", HEAD + BODY + "\n# %%\nx = = 1\n", "not Python: line 1"),
    ("07_sums.py", HEAD + BODY + '\n# %% tags=["instructor"]\n1\n', "not one paragraph"),
    ("07_sums.py", HEAD + BODY.replace('check("07-1", twice)', "twice"), "Exercise 7-1.*no check"),
    (
        "07_sums.py",
        HEAD + BODY.replace("# %%\ncheck", "# %% [markdown]\n# ## Next\n\n# %%\ncheck"),
        "no check",
    ),
]


@pytest.mark.parametrize("name, source, fact", REFUSED)
def test_refuses(tmp_path, name, source, fact):
    path = tmp_path / name
    path.write_text(source)
    with pytest.raises(LabError, match=fact):
        lesson.read(path)


def test_command_line_names_the_fault_and_fails(folder, capsys):
    assert build.main(["--check"], folder) == 1
    assert "missing" in capsys.readouterr().out
    assert build.main([], folder) == 0
    assert build.main(["--check"], folder) == 0
    (folder.parent / "lessons" / "07_sums.py").write_text(HEAD + "\n# %%\nx = = 1\n")
    assert build.main(["--stale"], folder) == 1
    assert "07_sums.py" in capsys.readouterr().err


def test_the_tree_has_what_the_lessons_build_and_no_outputs_are_committed(root):
    assert build.differences() == []

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
        ).stdout

    for name in git("ls-files", "--", "notebooks/*.ipynb").split():
        for cell in nbformat.reads(git("show", f":{name}"), as_version=4).cells:
            assert not cell.get("outputs") and not cell.get("execution_count"), f"{name}: {cell.source[:60]}"


def imports(text: str) -> set[str]:
    """Return the lines that import something of the kit's packages."""
    return set(re.findall(r"(?m)^from (?:labkit|course)\b.*$", text))


@pytest.mark.parametrize("page", sorted(EXAMPLES.glob("*.md")), ids=lambda page: page.stem)
def test_an_example_imports_what_its_lesson_does(page):
    """Examples are written once a release; what they import must be there in between, too."""
    solved = nbformat.read(build.FOLDER / "solutions" / f"{page.stem}.ipynb", as_version=4)
    code = "\n".join(cell.source for cell in solved.cells if cell.cell_type == "code")
    assert imports(page.read_text(encoding="utf-8")) == imports(code)
    assert imports(code)


def test_each_recipe_is_in_their_index():
    index = (build.FOLDER / "recipes" / "README.md").read_text(encoding="utf-8")
    names = [path.stem for path in build.recipes()]
    assert sorted(re.findall(r"\((\w+)\.ipynb\)", index)) == sorted(names)
