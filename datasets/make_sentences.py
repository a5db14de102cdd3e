"""Makes sentences.tsv and tokenizer.json: short text with a label, for a recipe of lesson 07.

    .venv/bin/python datasets/make_sentences.py

The text is the lab's own: the sentences of lessons 02 (label 0: data) and 03 (label 1: training). The
tokenizer has one token for each word that occurs twice or more. Made once and kept, so that a change of a
lesson does not change what lesson 07 trains on.
"""

import re
from pathlib import Path

import jupytext
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

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
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(min_frequency=2, special_tokens=["[PAD]", "[UNK]"])
    tokenizer.train_from_iterator([text for _, text in rows], trainer)
    tokenizer.save(str(FOLDER / "tokenizer.json"))
    print(f"{len(rows)} sentences, {tokenizer.get_vocab_size()} words")


if __name__ == "__main__":
    main()
