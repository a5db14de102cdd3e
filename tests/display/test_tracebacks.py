"""A traceback that fits a panel: the reader's own frames, and the error."""

import json
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import labkit
from labkit.display import tracebacks
from labkit.display.tracebacks import shorten, shorten_text
from labkit.panel import Panel


def caught(function, *args):
    try:
        function(*args)
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


def deep(depth):
    if depth:
        return deep(depth - 1)
    raise ValueError("at the bottom")


def test_the_error_and_where_it_came_from():
    text = shorten(caught(deep, 0))
    lines = text.splitlines()
    assert lines[-1] == "ValueError: at the bottom"
    assert lines[-2] == '    raise ValueError("at the bottom")'
    assert lines[-3].startswith("deep, test_tracebacks.py, line ")
    assert "Traceback" not in text


def test_of_a_deep_one_the_innermost_frames():
    text = shorten(caught(deep, 500))
    assert text.count("deep, test_tracebacks.py") == 3
    assert len(text) < 1000


def test_frames_of_libraries_go():
    text = shorten(caught(json.loads, "{"))
    assert "decoder.py" not in text and "site-packages" not in text
    assert text.splitlines()[0].startswith("caught, test_tracebacks.py")
    assert "JSONDecodeError" in text.splitlines()[-1]


class Broken:
    def __iter__(self):
        raise TypeError("no batches")


@pytest.mark.filterwarnings("ignore:the panel 'run' is not open")
def test_frames_of_the_lab_go(tmp_path):
    panel = Panel("run")
    text = shorten(caught(lambda: next(iter(panel.steps(Broken())))))
    assert "in the lab" not in text and "_steps" not in text and "follow" not in text
    assert text.splitlines()[-1] == "TypeError: no batches"


def test_frames_of_a_copy_of_the_lab_go():
    """On a cluster that runs elsewhere, Ray unpacks the copy of labkit that it was sent."""
    package = Path(labkit.__file__).parent
    shipped = Path("/tmp/ray/session_1/runtime_resources/py_modules_files/_ray_pkg_1/labkit")
    for file in package.rglob("*.py"):  # subpackages too
        text = (
            'Traceback (most recent call last):\n  File "/home/me/loop.py", line 3, in loop\n'
            f'  File "{shipped / file.relative_to(package)}", line 88, in inner\nValueError: x'
        )
        assert shorten_text(text).splitlines() == ["loop, loop.py, line 3", "ValueError: x"]


def test_a_folder_called_labkit_is_not_the_lab():
    text = 'Traceback (most recent call last):\n  File "/me/labkit/train_all.py", line 3, in f\nValueError: x'
    assert shorten_text(text).startswith("f, train_all.py, line 3")


def test_a_folder_that_only_begins_like_pythons_is_the_readers_own():
    library = tracebacks._LIBRARY
    assert not tracebacks._is_own(f"{library}/json/decoder.py")
    assert not tracebacks._is_own("/x/lib/python3.11/site-packages/torch/nn.py")
    assert not tracebacks._is_own("/usr/lib/python3/dist-packages/yaml.py")
    assert not tracebacks._is_own("<frozen importlib._bootstrap>")
    assert tracebacks._is_own(f"{library}-of-mine/model.py")
    assert tracebacks._is_own(f"{sys.base_prefix}/work/model.py")
    assert tracebacks._is_own("/home/me/site-packages-notes/model.py")
    assert tracebacks._is_own("/tmp/ipykernel_123/456.py")


def test_without_own_frames_the_innermost_stays():
    text = "Traceback (most recent call last):\n"
    text += '  File "/x/site-packages/a.py", line 1, in outer\n    inner()\n'
    text += '  File "/x/site-packages/b.py", line 2, in inner\n    raise X\nX: no'
    assert shorten_text(text) == "inner, b.py, line 2\nX: no"


def test_of_a_chain_the_last():
    def chained():
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error

    text = shorten(caught(chained))
    assert text.endswith("ValueError: second") and "KeyError" not in text and "direct cause" not in text


def test_a_cell_has_a_name_of_its_own():
    text = (
        'Traceback (most recent call last):\n  File "/tmp/ipykernel_1/2.py", line 3, in loop\nValueError: x'
    )
    assert shorten_text(text) == "loop, in a cell, line 3\nValueError: x"


def test_a_message_of_several_lines():
    message = "Error(s) in loading:\n\tMissing key(s): a\n\tUnexpected: b"
    text = shorten(caught(lambda: (_ for _ in ()).throw(RuntimeError(message))))
    assert text.splitlines()[-3:] == [
        "RuntimeError: Error(s) in loading:",
        "\tMissing key(s): a",
        "\tUnexpected: b",
    ]


def test_a_huge_message_is_cut():
    error = ValueError("\n".join(["long " * 1000] * 1000))
    assert len(shorten(error)) < 3000


@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        ValueError("\n\n"),
        KeyError("x"),
        KeyboardInterrupt(),
        SyntaxError("bad", ("file.py", 3, 1, "x = = 1", 3, 2)),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        type("Mute", (Exception,), {"__str__": lambda self: 1 / 0})(),
        ExceptionGroup("group", [ValueError("one"), ExceptionGroup("inner", [KeyError("two")])]),
        BaseExceptionGroup("group", [KeyboardInterrupt()]),
        ValueError("Traceback (most recent call last):\nnothing follows"),
        ValueError("\ud800 \x00"),
    ],
    ids=repr,
)
def test_any_error_has_words(error):
    for text in (shorten(error), shorten(caught(lambda: (_ for _ in ()).throw(error)))):
        assert text.strip() and len(text) < 3000
        assert type(error).__name__ in text or "nothing follows" in text


@pytest.mark.parametrize("text", ["", "\n", "   ", "no traceback at all", "  indented", "x" * 10**6, "\x00"])
def test_any_text_has_words(text):
    assert 0 < len(shorten_text(text)) < 3000


def test_a_group_shows_its_first_error():
    def several():
        raise ExceptionGroup("two went wrong", [caught(deep, 0), KeyError("two")])

    lines = shorten(caught(several)).splitlines()
    assert "ValueError: at the bottom" in lines
    assert lines[-1] == "ExceptionGroup: two went wrong (2 sub-exceptions)"


def test_a_recursion():
    def forever():
        forever()

    text = shorten(caught(forever))
    assert "RecursionError" in text and len(text) < 1000


def test_what_another_process_formatted():
    code = "def loop():\n    import json\n    json.loads('{')\nloop()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    text = shorten_text(done.stderr)
    assert text.startswith("<module>, <string>, line 4") and "loop, <string>, line 3" in text
    assert "decoder.py" not in text


def test_it_is_what_python_would_say():
    error = caught(deep, 0)
    assert shorten_text("".join(traceback.format_exception(error))) == shorten(error)


def test_without_the_name_of_a_cell_its_frames_are_in_a_cell(monkeypatch):
    import IPython

    class Shell:
        compile = object()

    monkeypatch.setattr(IPython, "get_ipython", Shell)
    frame = 'Traceback (most recent call last):\n  File "/tmp/ipykernel_1/2.py", line 3, in f\nValueError: x'
    assert tracebacks.shorten_text(frame) == "f, in a cell, line 3\nValueError: x"
