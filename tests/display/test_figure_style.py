"""The style of all figures: legible on light and on dark."""

import itertools

from labkit.display import figure_style

WHITE, DARK = "#ffffff", "#111111"  # the backgrounds of JupyterLab's two themes


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_everything_drawn_can_be_read_on_light_and_dark():
    style = figure_style()
    lines = [entry["color"] for entry in style["axes.prop_cycle"]]
    for colour, background in itertools.product(lines, (WHITE, DARK)):
        assert contrast(colour, background) >= 3, colour  # WCAG 2.2: graphical objects
    for name, value in style.items():
        drawn = name.startswith(("text", "axes", "xtick", "ytick")) and name.endswith("color")
        if drawn and value != "none":
            assert contrast(value, WHITE) >= 4, name
            assert contrast(value, DARK) >= 4, name
    assert style["figure.facecolor"] == style["axes.facecolor"] == "none"
    assert len({entry["linestyle"] for entry in style["axes.prop_cycle"]}) == len(lines)
