"""The look of all that the lab displays: one style sheet, which cards and panels carry with them.

Only JupyterLab's own CSS variables are used, each with a fallback that is legible on white and on black. Its
green, orange and red are too pale for text on white or too dark on black, so some of the text's own colour is
mixed in. Nothing moves by itself, so there is nothing to stop for people who prefer reduced motion.
"""

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
.labkit svg{display:block;width:100%;height:auto}.labkit text{fill:var(--lk-dim);font-size:10px;
paint-order:stroke;stroke:var(--jp-layout-color1,transparent);stroke-width:3px}
.labkit .lk-pad{padding:8px 12px 6px}.labkit .lk-pad>table{width:auto}
.labkit .lk-pad td,.labkit .lk-pad th{padding-right:20px!important}
.labkit text.lk-on{fill:var(--jp-layout-color0,#fff);stroke:none}
.labkit pre{margin:0;padding:8px 12px!important;overflow:auto;max-height:260px;white-space:pre-wrap;
color:inherit;background:none;font:12px/1.5 var(--jp-code-font-family,ui-monospace,monospace)}
.labkit .lk-text{padding:6px 12px 8px;color:var(--lk-dim)}
.labkit code{font-size:12px;background:none;color:inherit;overflow-wrap:anywhere}
@media (max-width:720px){.labkit .lk-body{grid-template-columns:minmax(0,1fr)}
.labkit .lk-tiles{grid-template-columns:repeat(2,1fr)}}
</style>"""
