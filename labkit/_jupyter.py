"""The shell of this kernel, and what the lab uses of IPython and ipykernel although they do not document it.

Written for IPython 9 and ipykernel 7. `NAMES` has what is lost without each name.
"""

import sys
from typing import Any

NAMES = {
    "IPython.core.compilerop:CachingCompiler.format_code_name": "the number of a cell in a traceback",
}


def shell() -> Any:
    """Return the shell of IPython that runs this process's cells; None without one, and without IPython."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    return get_ipython()


def cell_of(file: str) -> str:
    """Return ``cell 14`` for the file of a cell that this kernel has run; "" for all others."""
    compiler = getattr(shell(), "compile", None)
    name = compiler.format_code_name(file) if compiler else None
    if not name:
        return ""
    return " ".join(str(part) for part in name).replace("Cell In[", "cell ").rstrip("]")
