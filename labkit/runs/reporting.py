"""A report of runs, to hand in: one HTML file that needs nothing else, and runs no code."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from labkit.display.formatting import UNKNOWN
from labkit.errors import LabError, expect_installed
from labkit.files import atomic_write
from labkit.runs.browse import flat, overview, select, values_of
from labkit.runs.figures import draw
from labkit.runs.record import Home, RunRecord, number

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

_ORIGIN = ("engine", "workers", "dataset", "rows", "data_fingerprint", "epochs", "seed", "config", "versions")
_ORIGIN += ("host",)  # what is said once, where it is equal in all runs
_PAGE = Markup("""<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>{title}</title><style>
:root{{color-scheme:light dark}}
body{{max-width:60rem;margin:2rem auto;padding:0 1rem;font:16px/1.5 system-ui,sans-serif}}
table{{border-collapse:collapse;display:block;overflow-x:auto;font-size:14px}}
th,td{{text-align:left;vertical-align:top;padding:.2rem 1.2rem .2rem 0;border-bottom:1px solid #8886;
font-variant-numeric:tabular-nums}}
pre{{overflow-x:auto;padding:.8rem;border:1px solid #8886;font-size:13px}}
td:first-child{{white-space:nowrap}}img{{max-width:100%}}</style></head>
<body><main><h1>{title}</h1>{parts}</main></body></html>
""")


def report(
    path: Path | str,
    home: Home = None,
    *,
    title: str,
    text: str = "",
    by: str | None = None,
    metrics: str | Sequence[str] | None = None,
    pictures: Sequence["Figure"] = (),
    last: int | None = None,
    **filters: Any,
) -> Path:
    """Write a page about runs to `path`, and return it: what was asked, what came out, and where from.

    It has the text, the pictures, the table of the runs, their curves, what is equal in all of them, their
    code, and the versions and the commit they ran with.

    Args:
        home, last, filters: which runs, as in `table`.
        title, text: of your own; an empty line begins a new paragraph.
        by: a column, such as a setting. Runs with the same value are a group, with the mean and the standard
            deviation of each metric. One run that diverged makes both of its group inf or nan.
        metrics: as in `plot`. In the table of groups, default: all.
        pictures: figures of your own.
    """
    found, attempt = select(home, last, **filters), f"write the report {path}"
    expect_installed(attempt, "pandas", "matplotlib")
    groups = None if by is None else values_of(found, by)
    if groups is not None and not any(value is not None for value in groups):
        raise LabError(attempt, f"no run has {by!r}", "by= takes a setting, or a column of runs.table()")
    groups = groups and list(map(str, groups))
    parts = [Markup("<p>{}</p>").format(paragraph) for paragraph in text.split("\n\n") if paragraph.strip()]
    parts += [_picture(picture, "") for picture in pictures]
    if groups:
        asked = [metrics] if isinstance(metrics, str) else list(metrics or [])
        parts += _table(f"By {by}", _means(found, groups, by, asked), index=False)
    parts += _table("Runs", overview(found), index=False)
    figure = draw(found[::-1], metrics, groups and groups[::-1])  # the oldest first
    parts.append(_picture(figure, "curves of the runs, and where their seconds went"))
    parts += _table("Equal in all runs", _common(found), header=False)
    for code in dict.fromkeys(run.code for run in found):
        ids = [run.run_id for run in found if run.code == code]
        heading = f"Code of {'all runs' if len(ids) == len(found) else ', '.join(ids)}"
        block = Markup('<h2>{}</h2><pre tabindex="0">{}</pre>')
        parts.append(block.format(heading, code or "It is not recorded."))
    try:
        return atomic_write(path, _PAGE.format(title=title, parts=Markup().join(parts)))
    except OSError as error:
        raise LabError(attempt, str(error), "name a file that you can write to") from error


def _means(
    found: Sequence[RunRecord], groups: Sequence[str], by: str, metrics: Sequence[str]
) -> "pandas.DataFrame":
    """The mean and the standard deviation of each metric in the runs of a group that finished and have it."""
    import numpy
    import pandas

    rows = []
    for metric in metrics or dict.fromkeys(name for run in found for name in run.metrics):
        for name in dict.fromkeys(groups):
            mine = [run for run, group in zip(found, groups, strict=True) if group == name]
            values = [number(run.metrics.get(metric)) for run in mine if run.state == "finished"]
            if values := [value for value in values if value is not None]:
                with numpy.errstate(all="ignore"):  # of runs that diverged
                    spread = f"{numpy.std(values, ddof=1):.4g}" if len(values) > 1 else UNKNOWN
                    rows.append((name, metric, len(values), f"{numpy.mean(values):.4g}", spread))
    return pandas.DataFrame(rows, columns=[by, "metric", "runs", "mean", "standard deviation"])


def _common(found: Sequence[RunRecord]) -> "pandas.DataFrame":
    """Settings, versions and the like that are equal in all runs, and the commits."""
    import pandas

    each = [flat({name: getattr(run, name) for name in _ORIGIN}) for run in found]
    equal = {name: v for name, v in each[0].items() if all(repr(one.get(name)) == repr(v) for one in each)}
    shown = {name: str(value) for name, value in equal.items() if value is not None}
    shown["commit"] = ", ".join(dict.fromkeys(run.commit or "none" for run in found))
    return pandas.Series(shown, dtype=object).to_frame()


def _table(heading: str, frame: "pandas.DataFrame", **options: Any) -> list[Markup]:
    """A heading and the table; pandas escapes its texts."""
    import pandas

    with pandas.option_context("display.max_colwidth", None):
        return [
            Markup("<h2>{}</h2>").format(heading),
            Markup(frame.where(frame.notna(), float("nan")).to_html(border=0, na_rep=UNKNOWN, **options)),
        ]


def _picture(figure: "Figure", words: str) -> Markup:
    """The figure as an SVG in the ``src`` of an ``<img>``, where nothing in it can run."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg")
    source = f"data:image/svg+xml;base64,{base64.b64encode(drawn.getvalue()).decode()}"
    return Markup('<p><img alt="{}" src="{}"></p>').format(words, source)
