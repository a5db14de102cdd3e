"""Numbers and texts as a reader sees them, the same in every panel, table and record."""

import math
import re
from collections.abc import Sequence
from typing import Any

UNKNOWN = "–"  # shown where a number is not known
# Up to the last @ of the authority; a password may have a slash, too, and a port may not be one.
_CREDENTIALS = re.compile(r"(?<=//)(?:[^\s/?#]*@|[^\s/:@\[]+:(?!\d+(?:[/?#\s]|$))[^\s@]*@)")
_TERMINAL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # colours and cursor movements
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def clock(value: float) -> str:
    """Format seconds as on a clock: 72.4 -> ``01:12``; from an hour on ``1:01:12``."""
    whole = int(max(value, 0)) if math.isfinite(value) else 0
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    time = f"{minutes:02}:{seconds:02}"
    return f"{hours}:{time}" if hours else time


def seconds(value: float) -> str:
    """Format seconds: ``34 ms``, ``7.2 s``, ``84 s``, ``6 min 40 s``, ``2 h 13 min``."""
    if not math.isfinite(value):
        return UNKNOWN
    if value < 0.0995:
        milliseconds = max(value, 0.0) * 1000
        return f"{milliseconds:.0f} ms"
    if value < 9.95:
        return f"{value:.1f} s"
    if value < 119.5:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def duration(value: float) -> str:
    """Format how long something took: like `seconds` below a minute, like `clock` from then on."""
    return seconds(value) if value < 59.95 else clock(value)


def plural(number: int, noun: str) -> str:
    """Write a number with its noun: ``1 epoch``, ``2 epochs``."""
    ending = "" if number == 1 else "s"
    return f"{number:,} {noun}{ending}"


def count(value: float) -> str:
    """Format a number of things, such as rows in a second: 512 -> ``512``, 18_312 -> ``18.3 k``."""
    return _scaled(value, ("", "k", "M", "G"), whole_from=99.95)


def size(value: float | None) -> str:
    """Format bytes: 217_088 -> ``217 kB``."""
    if value is None:
        return UNKNOWN
    return _scaled(value, ("B", "kB", "MB", "GB", "TB"), whole_from=9.95)


def _scaled(value: float, units: Sequence[str], *, whole_from: float) -> str:
    """Format a number with the largest unit (of 1, 1000, …) that fits, whole from a limit on."""
    if not math.isfinite(value):
        return UNKNOWN
    power = 0
    while value >= 999.5 and power < len(units) - 1:
        value /= 1000
        power += 1
    digits = 1 if power > 0 and value < whole_from else 0
    return f"{value:.{digits}f} {units[power]}".rstrip()


def number(value: Any) -> str:
    """Format a metric with three or four digits that matter; shorten a text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return short(str(value))
    distance = abs(value)
    is_whole = distance < 1e9 and value == int(value)
    if is_whole or 999.9995 <= distance < 1e6:  # `.3g` would write 1e+03
        whole = round(value)
        return f"{whole:,}" if abs(whole) >= 10_000 else f"{whole}"
    if 0.001 <= distance < 999.9995:
        return f"{value:.3f}"
    return f"{value:.3g}"


def short(text: str, most: int = 40) -> str:
    """Shorten a text to one line of at most `most` characters."""
    line = " ".join(text[: 10 * most].split())
    if len(line) <= most:
        return line
    return line[: most - 1] + "…"


def short_metrics(metrics: dict[str, Any], most: int = 4) -> str:
    """Write metrics in one line: ``loss 0.214 · accuracy 0.951``."""
    texts = []
    for name, value in metrics.items():
        if name != "epoch":
            texts.append(f"{short(name)} {number(value)}")
    return joined(*texts[:most])


def cleaned(text: str) -> str:
    """Remove a terminal's colours and control characters from a text."""
    text = text.replace("\r\n", "\n")
    text = _TERMINAL.sub("", text)
    return _CONTROL.sub("\ufffd", text)


def without_credentials(endpoint: str) -> str:
    """Return the endpoint without a user name and a password that may be in it, whatever signs these have."""
    return _CREDENTIALS.sub("", endpoint)


def joined(*parts: str | None) -> str:
    """Join the parts that are there, in one line."""
    return " · ".join(filter(None, parts))
