"""Pieces of cards."""

from labkit.display import cards


def test_cells_are_texts_or_marks_and_all_is_escaped():
    html = cards.table(("a", "<b>"), [("<i>", ("ok", "<u>"))], more=2)
    assert "&lt;b&gt;" in html and "<td>&lt;i&gt;</td>" in html and "and 2 more" in html
    assert '<span class="lk-ok">&lt;u&gt;</span>' in html
    assert 'role="status" aria-live="polite">&lt;b&gt;' in cards.said("<b>")
