"""Cards and tables as HTML. Everything that is not `Markup` already is escaped.

    >>> card("Object store", ("ok", "running"), text("2 buckets"), dim="http://127.0.0.1:9000")

The style sheet is part of each card: cells are run again, deleted and copied one by one, and an export has
no kernel. It uses only JupyterLab's own CSS variables, each with a fallback that is legible on white and on
black. JupyterLab's green, orange and red are not, so some of the text's own colour is mixed in.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

STYLE = """<style>
.labkit{--lk-fg:var(--jp-content-font-color1,inherit);--lk-dim:var(--jp-content-font-color2,#767676);
--lk-line:var(--jp-border-color2,#9996);--lk-fill:var(--jp-layout-color2,#9993);
--lk-main:var(--jp-brand-color1,#1976d2);
--lk-ok:color-mix(in srgb,var(--jp-success-color1,#2e8b57) 70%,currentColor);
--lk-wait:color-mix(in srgb,var(--jp-warn-color0,#b26a00) 70%,currentColor);
--lk-bad:color-mix(in srgb,var(--jp-error-color1,#d13438) 70%,currentColor);
color:var(--lk-fg);font:13px/1.45 var(--jp-content-font-family,system-ui,sans-serif);max-width:880px}
.labkit *{box-sizing:border-box}
.labkit :focus-visible{outline:2px solid var(--lk-main)!important;outline-offset:1px}
.labkit .lk-said{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.labkit.lk-card{border:1px solid var(--lk-line);border-radius:6px;
background:var(--jp-layout-color1,transparent)}
.labkit .lk-head{display:flex;flex-wrap:wrap;gap:2px 12px;align-items:baseline;padding:7px 12px}
.labkit .lk-head b{font-size:14px}.labkit .lk-dim{color:var(--lk-dim)}
.labkit .lk-ok{color:var(--lk-ok)}.labkit .lk-wait{color:var(--lk-wait)}.labkit .lk-bad{color:var(--lk-bad)}
.labkit .lk-rule{border-top:1px solid var(--lk-line)}
.labkit .lk-body{display:grid;grid-template-columns:minmax(0,1fr) 300px;gap:16px;padding:8px 12px 10px}
.labkit .lk-main{min-height:190px}.labkit.lk-card>.lk-body .lk-main{min-height:0}
.labkit .lk-steps span{display:inline-block;margin-right:14px;white-space:nowrap}
.labkit .lk-now{font-weight:600}
.labkit .lk-bar{height:8px;border-radius:4px;background:var(--lk-fill);overflow:hidden;margin:4px 0 8px}
.labkit .lk-bar i{display:block;height:100%;background:var(--lk-main)}
.labkit .lk-bar.lk-unknown i{opacity:.5;
background:repeating-linear-gradient(135deg,var(--lk-main) 0 8px,transparent 8px 16px)}
.labkit .lk-tiles{display:grid;grid-template-columns:repeat(4,minmax(0,1fr));gap:8px;margin:6px 0 8px}
.labkit .lk-tiles div{border-left:2px solid var(--lk-line);padding-left:8px;white-space:nowrap;
overflow:hidden}
.labkit .lk-tiles b{display:block;font-size:16px}.labkit .lk-tiles span{white-space:normal}
.labkit b,.labkit table,.labkit .lk-num{font-variant-numeric:tabular-nums}
.labkit table{border-collapse:collapse;table-layout:auto;width:100%;margin:0;font-size:13px;
color:inherit;border:0}
.labkit table+table{margin-top:6px}
.labkit td,.labkit th{text-align:left!important;padding:2px 8px 2px 0!important;font-weight:400;border:0;
background:none;vertical-align:top}
.labkit th{color:var(--lk-dim)}.labkit tr{background:none!important}
.labkit svg{display:block;width:100%;height:auto;overflow:visible}
.labkit text{fill:var(--lk-dim);font-size:10px;
paint-order:stroke;stroke:var(--jp-layout-color1,transparent);stroke-width:3px}
.labkit .lk-pad{padding:8px 12px 6px}.labkit .lk-pad>table{width:auto}
.labkit .lk-pad td,.labkit .lk-pad th{padding-right:20px!important}
.labkit .lk-legend{display:flex;flex-wrap:wrap;gap:0 14px;margin-bottom:3px;color:var(--lk-dim)}
.labkit .lk-legend i{display:inline-block;width:9px;height:9px;border-radius:2px;margin-right:5px}
.labkit .lk-strip{display:flex;align-items:center;gap:8px;margin-bottom:3px}
.labkit .lk-strip span{flex:0 0 52px;color:var(--lk-dim)}
.labkit .lk-strip div{flex:1;display:flex;height:11px;border-radius:3px;overflow:hidden}
.labkit .lk-part1{background:#c77700}.labkit .lk-part2{background:#2f7fd6}
.labkit .lk-part3{background:#6a5acd}.labkit .lk-part4{background:#c2408f}
.labkit .lk-part5{background:#1f9479}.labkit .lk-part6{background:#858585}
.labkit text.lk-on{fill:var(--jp-layout-color0,#fff);stroke:none}
.labkit pre{margin:0;padding:8px 12px!important;overflow:auto;max-height:260px;white-space:pre-wrap;
color:inherit;background:none;font:12px/1.5 var(--jp-code-font-family,ui-monospace,monospace)}
.labkit .lk-text{padding:6px 12px 8px;color:var(--lk-dim)}
.labkit code{font-size:12px;background:none;color:inherit;overflow-wrap:anywhere}
@media (max-width:720px){.labkit .lk-body{grid-template-columns:minmax(0,1fr)}
.labkit .lk-tiles{grid-template-columns:repeat(2,1fr)}}
</style>"""

NOTHING = Markup()
Cell = str | tuple[str, str]


def card(title: str, status: tuple[str, str], *parts: str, dim: str = "") -> Markup:
    """Draw a card: title, status and a dim text in its head, and `parts` below.

    Args:
        status: (look, text), as `mark` takes them.
    """
    return frame(head(title, mark(*status), mark("dim", dim)), *parts)


def frame(*parts: str) -> Markup:
    """Draw a card without a head."""
    return Markup(STYLE) + _div("labkit lk-card", *parts)


def figure(title: str, svg: str) -> Markup:
    """Draw a figure that stands alone, with a line of text above it."""
    return Markup(STYLE) + _div("labkit lk-text", title, svg)


def part(*parts: str) -> Markup:
    """Draw a piece of a card without frame and style sheet, for a widget that brings both."""
    return _div("labkit", *parts)


def head(title: str, *parts: str) -> Markup:
    """Draw the first line of a card."""
    return _div("lk-head", Markup("<b>{}</b>").format(title), *parts)


def mark(look: str, text: str) -> Markup:
    """Colour a text: "ok", "bad", "wait", "dim", or "now" (bold). Choose a text that needs no colour."""
    if not text:
        return NOTHING
    return Markup('<span class="lk-{}">{}</span>').format(look, text)


def said(text: str) -> Markup:
    """Add a text for a screen reader only, which reads it aloud when it changes."""
    return Markup('<div class="lk-said" role="status" aria-live="polite">{}</div>').format(text)


def rule(content: str) -> Markup:
    """Draw a section of a card, below a line."""
    return _div("lk-rule lk-pad", content)


def text(line: str) -> Markup:
    """Draw a section with a line of text."""
    return _div("lk-rule lk-text", line)


def table(
    head: Sequence[str], rows: Iterable[Sequence[Any]], *, more: int = 0, widths: Sequence[int] = ()
) -> Markup:
    """Draw a table.

    Args:
        rows: cells are (look, text), as `mark` takes them, or anything with a text.
        more: rows that are not shown: a line below says how many.
        widths: of the columns in percent, for a live table that must not jump.
    """
    cells = []
    for number, name in enumerate(head):
        style = Markup(' style="width:{}%"').format(widths[number]) if widths else NOTHING
        # A column without a name has no header: a screen reader would read out an empty one.
        cell = '<th scope="col"{}>{}</th>' if name else "<td{}>{}</td>"
        cells.append(Markup(cell).format(style, name))
    lines = [NOTHING.join(cells)]
    for row in rows:
        lines.append(NOTHING.join(_cell(cell) for cell in row))
    if more > 0:
        lines.append(Markup('<td class="lk-dim" colspan="{}">and {} more</td>').format(len(head), more))
    fixed = Markup(' style="table-layout:fixed"') if widths else NOTHING
    body = NOTHING.join(Markup("<tr>{}</tr>").format(line) for line in lines)
    return Markup("<table{}>{}</table>").format(fixed, body)


def _cell(cell: Cell) -> Markup:
    content = mark(*cell) if isinstance(cell, tuple) else cell
    return Markup("<td>{}</td>").format(content)


def _div(classes: str, *parts: str) -> Markup:
    return Markup('<div class="{}">{}</div>').format(classes, NOTHING.join(parts))
