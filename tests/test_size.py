"""How large code is to read."""

import size

CODE = '''"""A docstring."""

__all__ = ["grow"]


def grow(one):
    """Another docstring."""
    # A comment.
    text = """not a
    docstring"""
    return one + len(text)
'''


def test_tokens_lines_and_names_are_counted(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text(CODE)
    counted = size.size_of(tmp_path)
    assert (counted.tokens, counted.lines, counted.vague) == (5 + 6 + 3 + 7, 5, 2)
    assert counted.public == {"package.grow"}
