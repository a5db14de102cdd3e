"""docs/works-with.md, from what was seen."""

import platform
from importlib import metadata
from itertools import groupby

from benchmarks._works_with.table import FACTS, Row

HEAD = """# What works

Each row was run: a loop of about twenty lines, as the library's own page would write it, on two ranks
and CPUs, under a panel. `python -m benchmarks works_with` runs it again and writes this page;
`tests/benchmarks/test_works_with.py` compares it with new runs. The loops are in
`benchmarks/_works_with/rows`, and `problem.py` next to it has the data, the model, and the calls of Ray
that report an epoch and resume a run. What a row says of CPUs (`cpu=True`, `use_cpu=True`,
`ACCELERATE_USE_CPU`) is left out on GPUs, where nothing of this was run.

{summary}

The columns ask:

{legend}.

Where a row says **no**, the note below its table says why, or what to write.
"""

NOT_RUN = """## Not run

| what | why |
|---|---|
| mosaicml-streaming 0.13.0 | It asks for `numpy<2.2`, `transformers<5` and torchvision, whose build on \
PyPI doesn't load with the CPU build of torch. |
| trackio 0.43.0 | It asks for `pillow<13`, and the lab has 13.0.0. |
| aim 3.29.1 | Its part `aim-ui` has no wheel. |
| fastai and torchtnt with their own dependencies | They bring torchvision, which with the CPU build of \
torch breaks `import transformers` and `import lightning`. The rows use them without it. |
| `TuneBOHB` with `HyperBandForBOHB` (hpbandster 0.7.4) | Of two sweeps of six short trials, one never \
ended: the scheduler continued none of the paused trials, and the panel says so. A sweep that was stopped \
and restored ended with a `KeyError`, because the searcher had forgotten the running trials. |
| torchft | It installs, but its replica groups need a lighthouse server, and Ray Train restarts workers by \
itself. |
| `TensorflowTrainer` | Lesson [04](../notebooks/04_tensorflow_trainer.ipynb) and its tests run it. |
"""


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """The installed versions of packages."""
    return {package: metadata.version(package) for package in packages}


def stack() -> list[str]:
    """The versions that all rows share."""
    installed = [f"{name} {metadata.version(name.lower())}" for name in ("Ray", "torch")]
    return [*installed, f"Python {platform.python_version()}"]


def write(rows: list[Row], seen: dict[str, dict]) -> str:
    """The page of all rows that were run."""
    legend = ";\n".join(f"- *{fact}*: {question}" for fact, question in FACTS.items())
    parts = [HEAD.format(summary=_summary(rows, seen), legend=legend)]
    for group, members in groupby(rows, key=lambda row: row.group):
        parts.append(_table(group, list(members), seen))
    return "\n".join([*parts, NOT_RUN])


def _summary(rows: list[Row], seen: dict[str, dict]) -> str:
    days = sorted({seen[row.key]["day"] for row in rows})
    stack = ", ".join(dict.fromkeys(version for row in rows for version in seen[row.key]["stack"]))
    seconds = sum(seen[row.key]["seconds"] for row in rows)
    trained = [row for row in rows if "one model" in row.asked]
    together = [row for row in trained if seen[row.key]["facts"]["one model"]]
    at_once = [row for row in together if not row.line]
    parts = (
        f"Run on {' to '.join(days)} with {stack}, {len(rows)} rows in {seconds:.0f} s, on two cores that",
        f"were busy with other work, too. Of {len(trained)} rows that train on two ranks, {len(at_once)}",
        f"train one model unchanged, {len(together) - len(at_once)} with the line that is named, and",
        f"{len(trained) - len(together)} don't. Before each row was run, a guess was written into its head:",
        "10 of 213 missed, which [findings](../findings/README.md) lists.",
    )
    return " ".join(parts)


def _table(group: str, rows: list[Row], seen: dict[str, dict]) -> str:
    facts = [fact for fact in FACTS if any(fact in row.asked for row in rows)]
    head = f"| what | versions | {' | '.join(facts)} | what to write |"
    lines = [f"## {group}\n", head, "|---" * (len(facts) + 3) + "|"]
    notes = []
    for row in rows:
        about = seen[row.key]
        cells = [_cell(fact, about["facts"]) for fact in facts]
        packages = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
        source = f"[{row.name}](../benchmarks/_works_with/rows/{row.key}.py)"
        lines.append(f"| {source} | {packages} | {' | '.join(cells)} | {row.line} |")
        sentences = [row.note] if row.note else []
        sentences += [f"The panel: “{note}”." for note in about["notes"]]
        if sentences:
            notes.append(f"- {row.name}: {' '.join(sentences)}")
    return "\n".join([*lines, "", *notes, ""])


def _cell(fact: str, facts: dict[str, bool]) -> str:
    if fact not in facts:
        return "–"
    return "yes" if facts[fact] else "**no**"
