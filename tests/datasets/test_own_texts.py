"""Texts of your own: as tokens for a language model, or with a class for each."""

import pickle
import re

import numpy as np
import pandas
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from labkit.datasets import from_text
from labkit.errors import LabError

WORDS = [f"w{i}" for i in range(50)]
FILMS = pandas.DataFrame({"text": ["good", "bad, truly"] * 30, "stars": [10, 9] * 30})


def refused(source, **options) -> LabError:
    with pytest.raises(LabError) as caught:
        from_text(source, **{"length": 8, **options})
    return caught.value


def bytes_of(own) -> bytes:
    return bytes(own.x.ravel().astype(np.uint8))


def tokenizer(step=1):
    """Its tokens are [UNK], [PAD], [CLS], [SEP] and 50 words; with a larger step there are gaps."""
    tokens = {"[UNK]": 0, "[PAD]": 1, "[CLS]": 2, "[SEP]": 3}
    tokens |= {word: step * number + 4 for number, word in enumerate(WORDS)}
    one = Tokenizer(models.WordLevel(tokens, unk_token="[UNK]"))
    one.pre_tokenizer = pre_tokenizers.Whitespace()
    return one


def test_a_tokenizer_that_has_not_learned_the_text():
    untrained, unknown = Tokenizer(models.BPE()), Tokenizer(models.WordLevel({"good": 0}))
    assert "no tokens yet" in refused(FILMS, target="stars", tokenizer=untrained).fact
    assert "refuses" in refused(FILMS, target="stars", tokenizer=unknown).fact
    half = FILMS.assign(text="good \ud83d")  # of a pair of surrogates, as in JSON of short messages
    assert len(from_text(half, length=4, target="stars", tokenizer=tokenizer())) == 60


def test_text_for_a_language_model(tmp_path):
    text = "".join(np.random.default_rng(0).choice(list("abcdé \n"), 5000))
    (tmp_path / "plays.txt").write_text(text, encoding="utf-8")
    own = from_text(str(tmp_path / "plays.txt"), length=32)
    assert (own.task, own.vocabulary, own.x.dtype) == ("language", 256, np.int64)
    np.testing.assert_array_equal(own.x.ravel()[1:], own.y.ravel()[:-1])  # what follows
    assert bytes_of(own) == text.encode()[: own.x.size]
    (tmp_path / "short.txt").write_text("short")
    assert "5 tokens are fewer than a row of 32" in refused(tmp_path / "short.txt", length=32).fact
    own = from_text(FILMS.rename(columns={"text": "review"}), length=4, column="review")
    assert own.task == "language" and bytes_of(own)[:16] == b"good\nbad, truly\n"


def test_files_of_a_folder(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfto be\r\nor ")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "b.txt").write_text("not to be, n\u00f6t", encoding="utf-16")
    for name in ("._a.txt", ".hidden.txt", "Thumbs.db"):
        (tmp_path / name).write_bytes(b"\0\5\x16\7 of a Mac")
    for source in (tmp_path, [tmp_path / "a.txt", tmp_path / "._a.txt", tmp_path / "b" / "b.txt"]):
        assert bytes_of(from_text(source, length=4)).decode() == "to be\nor not to be, "
    (tmp_path / "notes.md").write_text("x" * 99)
    assert "notes.md doesn't end with .txt" in refused(tmp_path).fact
    assert len(from_text(tmp_path / "notes.md", length=8)) == 12
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    assert "can't decode byte 0xe9" in refused(tmp_path / "latin.txt").fact
    for source in (tmp_path / "none.txt", "a text in place of a path " * 99):
        assert "no file or folder" in refused(source).fact
    assert "is of type int" in refused(7).fact


SET_UP = {
    "plain": lambda one: None,
    "truncation": lambda one: one.enable_truncation(max_length=512),
    "padding": lambda one: one.enable_padding(length=32_000, pad_id=1, pad_token="[PAD]"),
    "special": lambda one: setattr(
        one,
        "post_processor",
        processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]),
    ),
}


@pytest.mark.parametrize("kind", SET_UP)
def test_all_of_the_text_becomes_rows_and_nothing_else(tmp_path, kind):
    (tmp_path / "plays.txt").write_text(" ".join(WORDS[i % 50] for i in range(20_000)))
    SET_UP[kind](one := tokenizer())
    before = one.to_str()
    own = from_text(tmp_path / "plays.txt", length=16, tokenizer=one)
    assert len(own) == 1249 and own.vocabulary == 54 and own.x[0].tolist() == [*range(4, 20)]
    assert one.to_str() == before and "w0 w1 w2" in own._repr_html_()
    assert pickle.loads(pickle.dumps(own)).text(own.x[0])[:5] == "w0 w1"


def test_each_token_is_smaller_than_the_vocabulary(tmp_path):
    path = tmp_path / "plays.txt"
    path.write_text(" ".join(WORDS) + " <new>" * 20)
    assert from_text(path, length=16, tokenizer=tokenizer(2)).vocabulary == 103
    added = tokenizer()
    added.add_tokens([AddedToken("<new>")])
    own = from_text(path, length=16, tokenizer=added)
    assert own.vocabulary == 55 and own.y.max() == 54
    of_transformers = type("OfTransformers", (), {"backend_tokenizer": tokenizer()})()
    assert from_text(path, length=16, tokenizer=of_transformers).x[0, 0] == 4
    for wrong in ("gpt2", Tokenizer, str.split):
        assert "the tokenizer is " in refused(path, tokenizer=wrong).fact


def test_a_short_text_is_filled_up_with_the_tokenizers_padding():
    films = FILMS.assign(text=["w0 w1", "w2"] * 30)
    for set_up in ("plain", "padding", "truncation"):
        SET_UP[set_up](one := tokenizer())
        assert from_text(films, length=3, target="stars", tokenizer=one).x[0].tolist() == [4, 5, 1]
    none = Tokenizer(models.WordLevel({"w0": 0, "w1": 1, "w2": 2}, unk_token="w0"))
    none.pre_tokenizer = pre_tokenizers.Whitespace()
    assert from_text(films, length=3, target="stars", tokenizer=none).x[0].tolist() == [0, 1, 0]


def test_a_class_for_each_text(tmp_path):
    FILMS.to_csv(tmp_path / "films.csv", index=False)
    own = from_text(tmp_path / "films.csv", length=5, target="stars")
    assert own.fingerprint == from_text(FILMS, length=5, target="stars").fingerprint
    assert own.classes == ("9", "10") and own.y[:2].tolist() == [1, 0] and own.vocabulary == 256
    assert [bytes(row).rstrip(b"\0") for row in own.x[:2].astype(np.uint8)] == [b"good", b"bad, "]
    assert re.findall("<td>(.*?)</td>", own._repr_html_())[::2][:2] == ["good", "10"]
    FILMS.assign(text=["null", "n/a"] * 30).to_csv(tmp_path / "films.csv", index=False)
    own = from_text(tmp_path / "films.csv", length=3, target="stars")
    assert bytes(own.x[1].astype(np.uint8)) == b"n/a"  # a text, and not an empty cell


def test_texts_that_cannot_be_used():
    assert "no column 'review'" in refused(FILMS, target="stars", column="review").fact
    assert "no column 'rating'" in refused(FILMS, target="rating").fact
    for missing in (None, ""):
        table = FILMS.assign(text=["good", missing] * 30, stars=[1, 1, 2, 2] * 15)
        error = refused(table, target="stars")
        assert "'text' is empty in 30 of 60 rows" in error.fact
        fixed = {"table": table}
        exec(error.fix.partition(": ")[2], fixed)
        assert len(from_text(fixed["table"], length=8, target="stars")) == 30
    words = FILMS.assign(tags=[[0, 1], [1]] * 30)
    assert "cells of type list" in refused(words, target="tags").fact
    assert "cells of type list" in refused(words, target="stars", column="tags").fact
    assert "all rows have the same 'stars': '-1'" in refused(FILMS.assign(stars=-1), target="stars").fact
