"""The undocumented names of Jupyter that labkit uses, and what happens without them."""

from importlib.metadata import version

import ipykernel.comm
from IPython.core.compilerop import CachingCompiler

from labkit.display import tracebacks


def test_jupyter_has_the_names():
    said = f"ipykernel {version('ipykernel')}: see labkit/panel/reporters.py"
    assert hasattr(ipykernel.comm.Comm, "_reply_subshell_for"), said
    said = f"IPython {version('ipython')}: see labkit/display/tracebacks.py"
    assert hasattr(CachingCompiler, "format_code_name"), said


def test_without_the_name_of_a_cell_its_frames_are_in_a_cell(monkeypatch):
    import IPython

    class Shell:
        compile = object()

    monkeypatch.setattr(IPython, "get_ipython", Shell)
    frame = 'Traceback (most recent call last):\n  File "/tmp/ipykernel_1/2.py", line 3, in f\nValueError: x'
    assert tracebacks.shorten_text(frame) == "f, in a cell, line 3\nValueError: x"
