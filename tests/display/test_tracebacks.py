"""A traceback that fits a panel: the reader's own frames, and the error."""

import json
from types import SimpleNamespace

import pytest

from labkit.display import tracebacks
from labkit.display.tracebacks import shorten, shorten_text
from labkit.panel import Panel
from labkit.worker.remote import TrackedFunction


def caught(function, *args):
    try:
        function(*args)
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


def raising(error):
    return caught(lambda: (_ for _ in ()).throw(error))


def printed(*frames, message="ValueError: x"):
    """A traceback as Python prints it; frames are (file, line, function)."""
    lines = [f'  File "{file}", line {line}, in {function}' for file, line, function in frames]
    return "\n".join(["Traceback (most recent call last):", *lines, message])


def deep(depth):
    if depth:
        return deep(depth - 1)
    raise ValueError("at the bottom")


def test_the_error_and_where_it_came_from():
    *_, frame, source, error = shorten(caught(deep, 0)).splitlines()
    assert frame.startswith("deep, test_tracebacks.py, line ")
    assert (source, error) == ('    raise ValueError("at the bottom")', "ValueError: at the bottom")
    text = shorten(caught(deep, 500))
    assert text.count("deep, test_tracebacks.py") == 3 and "Traceback" not in text


def test_frames_of_libraries_and_of_the_lab_go():
    text = shorten(caught(json.loads, "{"))
    assert text.startswith("caught, test_tracebacks.py") and "decoder.py" not in text
    assert "JSONDecodeError" in text.splitlines()[-1]
    text = shorten(caught(lambda: TrackedFunction(json.loads, Panel("run").tracker)("{")))
    assert "__call__" not in text and "following" not in text and "<lambda>, test_tracebacks.py" in text


# On a cluster that runs elsewhere, Ray unpacks the copy of labkit that it was sent.
SHIPPED = "/tmp/ray/session_1/runtime_resources/py_modules_files/_ray_pkg_1/labkit"


@pytest.mark.parametrize(
    "file, own",
    [
        (f"{tracebacks._LIBRARY}/json/decoder.py", False),
        ("/x/lib/python3.11/site-packages/torch/nn.py", False),
        ("<frozen importlib._bootstrap>", False),
        (f"{SHIPPED}/settings.py", False),
        (f"{SHIPPED}/worker/hooks.py", False),
        (f"{tracebacks._LIBRARY}-of-mine/model.py", True),
        ("/home/me/site-packages-notes/model.py", True),
        ("/me/labkit/train_all.py", True),
        ("/tmp/ipykernel_123/456.py", True),
    ],
)
def test_whose_a_frame_is(file, own):
    text = shorten_text(printed(("/home/me/loop.py", 3, "loop"), (file, 7, "inner")))
    assert ("inner, " in text) == own
    assert shorten_text(printed((file, 7, "inner"))).startswith("inner, ")  # the innermost one stays


def test_a_cell_has_a_name_of_its_own_or_is_a_cell(monkeypatch):
    import IPython

    text = printed(("/tmp/ipykernel_1/2.py", 3, "loop"))
    assert shorten_text(text) == "loop, in a cell, line 3\nValueError: x"
    named = SimpleNamespace(format_code_name=lambda file: ("Cell", "In[14]"))
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(compile=named))
    assert shorten_text(text) == "loop, cell 14, line 3\nValueError: x"


def test_of_a_chain_the_last_and_of_a_group_the_first():
    def chained():
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error

    text = shorten(caught(chained))
    assert text.endswith("ValueError: second") and "KeyError" not in text and "direct cause" not in text
    group = ExceptionGroup("two went wrong", [caught(deep, 0), KeyError("two")])
    lines = shorten(raising(group)).splitlines()
    assert "ValueError: at the bottom" in lines
    assert lines[-1] == "ExceptionGroup: two went wrong (2 sub-exceptions)"


def test_any_error_has_words_and_not_too_many():
    mute = type("Mute", (Exception,), {"__str__": lambda self: 1 / 0})()
    long = ValueError("\n".join(["long " * 1000] * 1000))
    for error in (ValueError(), long, mute, ValueError("\ud800 \x00")):
        for text in (shorten(error), shorten(raising(error))):
            assert type(error).__name__ in text and len(text) < 3000
