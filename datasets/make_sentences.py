"""Makes sentences.tsv: short text with a label, for lesson 11 and a template.

    .venv/bin/python datasets/make_sentences.py

The text is the lab's own: the sentences of lessons 02 (label 0: data) and 03 (label 1: training). Made once
and kept, so that a change of a lesson does not change what lesson 11 trains on.
"""

import re
from pathlib import Path

import jupytext

CHECKOUT = Path(__file__).resolve().parent.parent
FOLDER = CHECKOUT / "datasets"
LESSONS = ("02_data_preprocessing", "03_torch_trainer")


def sentences(lesson: str) -> list[str]:
    """The sentences of a lesson's prose: 4 to 30 words, no code, no tables, each once."""
    source = CHECKOUT / "lessons" / f"{lesson}.py"
    cells = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent").cells
    prose = [cell.source for cell in cells[1:] if cell.cell_type == "markdown"]
    prose = [re.sub(r"```.*?```", " ", text, flags=re.DOTALL) for text in prose]
    lines = [re.sub(r"\s+", " ", re.sub(r"^[#|].*$", " ", text, flags=re.MULTILINE)) for text in prose]
    found = [part for line in lines for part in re.split(r"(?<=[.!?]) ", re.sub(r"[*_`]", "", line))]
    found = [re.sub(r"[^\w ,.?!'-]", "", part).strip() for part in found]
    return list(dict.fromkeys(part for part in found if 4 <= len(part.split()) <= 30))


def main() -> None:
    rows = [(label, text) for label, lesson in enumerate(LESSONS) for text in sentences(lesson)]
    table = "".join(f"{label}\t{text}\n" for label, text in rows)
    (FOLDER / "sentences.tsv").write_text(table, encoding="utf-8")
    print(f"{len(rows)} sentences")


if __name__ == "__main__":
    main()
