"""Cards: what their HTML says to those who do not see it."""

from labkit.display import cards


def test_a_screen_reader_gets_words_and_values():
    known, unknown = cards.bar("epoch 1 of <2>", 0.256), cards.bar("", None)
    for given in ('role="progressbar"', 'aria-valuetext="epoch 1 of &lt;2&gt;"', 'aria-valuenow="26"'):
        assert given in known
    assert 'aria-label="progress"' in unknown and "aria-valuenow" not in unknown
    assert 'role="status" aria-live="polite">&lt;b&gt;' in cards.said("<b>")
    assert '<th scope="row">logs</th>' in cards.files([("logs", "/tmp")])
    assert 'aria-valuenow="0"' in cards.bar("", 0.0) and "width:0.0%" in cards.bar("", 0.0)
    assert cards.table(["rank"], [["0"]]).count('<th scope="col">') == 1
