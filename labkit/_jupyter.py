"""What the lab uses of IPython and ipykernel although they do not document it.

Written for IPython 9 and ipykernel 7. `NAMES` has what is lost without each name.
"""

import sys

NAMES = {
    "IPython.core.compilerop:CachingCompiler.format_code_name": "the number of a cell in a traceback",
}


def cell_of(file: str) -> str:
    """Return ``cell 14`` for the file of a cell that this kernel has run; "" for all others."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    compiler = getattr(get_ipython(), "compile", None)
    name = compiler.format_code_name(file) if compiler else None
    if not name:
        return ""
    return " ".join(str(part) for part in name).replace("Cell In[", "cell ").rstrip("]")
