"""Data of one's own: what good files become, and what is said about each kind of damage."""

import io
import re

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from benchmarks import own_data
from labkit import datasets
from labkit.errors import DatasetError

NUMBERS = np.random.default_rng(0)


@pytest.fixture(scope="module")
def table():
    n = 10_000
    return pandas.DataFrame(
        {
            "size": NUMBERS.normal(size=n),
            "rooms": NUMBERS.integers(1, 9, n),
            "colour": NUMBERS.choice(["red", "blue", "green"], n),
            "price": NUMBERS.normal(size=n),
        }
    )


@pytest.fixture
def photos(tmp_path):
    for name, grey in (("cat", 40), ("dog", 200)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(70):
            pixels = np.full((12, 10, 3), grey + number % 5, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


def failure(load, *given, **named) -> str:
    with pytest.raises(DatasetError) as caught:
        own = load(*given, **named)
        for split in ("train", "test"):
            own.load(split)
    return str(caught.value)


def test_a_folder_of_images(photos):
    own = datasets.from_folder(photos)
    assert repr(own) == "<photos: images of 12×10×3, classification, 2 classes>" and own.classes == (
        "cat",
        "dog",
    )
    x, y = own.load("train")
    assert x.dtype == np.uint8 and y.dtype == np.int64 and len(x) + len(own.load("test")[0]) == 140
    np.testing.assert_array_equal(x.mean(axis=(1, 2, 3)) > 100, y == 1)  # no image has another's label
    assert np.flatnonzero(np.diff(y)).size > 5  # and they are not in the order of the folders
    assert own._repr_html_().count("<img") == 8
    other = datasets.from_folder(photos, seed=1).load("test")[1]
    assert not np.array_equal(own.load("test")[1], other)
    np.testing.assert_array_equal(own.load("test")[1], datasets.from_folder(photos).load("test")[1])


def test_grey_images_of_16_bits_keep_their_high_ones(photos):
    for file in photos.glob("*/*.png"):
        Image.fromarray(np.full((12, 10), 3000, np.uint16)).save(file)
    assert set(datasets.from_folder(photos).load("train")[0].flat) == {3000 // 256}


def test_images_of_another_kind(photos):
    Image.fromarray(np.zeros((30, 30), np.uint8)).save(photos / "cat" / "large.jpg")
    assert "large.jpg has 30×30 pixels" in failure(datasets.from_folder, photos)
    assert "size=(12, 10) (height, width) scales all" in failure(datasets.from_folder, photos)
    assert "size=16 is no height and width" in failure(datasets.from_folder, photos, size=16)
    assert datasets.from_folder(photos, size=(8, 6)).load("train")[0].shape[1:] == (8, 6, 3)
    (photos / "cat" / "note.png").write_text("not a picture")
    assert "note.png is no image" in failure(datasets.from_folder, photos, size=(8, 6))
    half = (photos / "dog" / "0.png").read_bytes()[:45]
    for name in ("a.png", "b.png"):
        (photos / "dog" / name).write_bytes(half)
    told = failure(datasets.from_folder, photos, size=(8, 6))
    for part in ("is no image", "no images either: ", "note.png", "a.png", "b.png", "repair them"):
        assert part in told
    assert "no folder in it has a PNG" in failure(datasets.from_folder, photos / "cat")
    assert "no such folder" in failure(datasets.from_folder, photos / "bird")


def test_one_image_in_colour_makes_all_of_them_so(photos):
    Image.fromarray(np.zeros((12, 10), np.uint8)).save(photos / "cat" / "0.png")  # the first
    assert datasets.from_folder(photos).load("train")[0].shape[1:] == (12, 10, 3)
    for file in photos.rglob("*.png"):
        Image.fromarray(np.zeros((12, 10), np.uint8)).save(file)
    assert datasets.from_folder(photos).load("train")[0].shape[1:] == (12, 10)


def test_an_image_is_turned_as_its_camera_says(photos):
    turned, exif = photos / "cat" / "turned.jpg", Image.Exif()
    exif[0x0112] = 6  # its top is on the right, so 10×12 pixels in the file are 12×10
    left_is_white = np.repeat([[255] * 6 + [0] * 6], 10, axis=0).astype(np.uint8)
    Image.fromarray(left_is_white).convert("RGB").save(turned, exif=exif)
    assert datasets.from_folder(photos).load("train")[0].shape[1:] == (12, 10, 3)
    for file in photos.rglob("*.png"):
        if file.name != "0.png" or file.parent.name == "cat":
            file.unlink()
    x, y = datasets.from_folder(photos, test=0).load("train")
    above, below = x[y == 0][0, :4].mean(), x[y == 0][0, -4:].mean()
    assert above > 200 and below < 50


def test_folders_that_are_no_classes(photos):
    for split in ("train", "test"):
        (photos.parent / "tree" / split).mkdir(parents=True)
    photos.rename(photos.parent / "tree" / "train" / "animals")
    said = failure(datasets.from_folder, photos.parent / "tree")
    assert "test, train have the names of splits" in said
    assert f"from_folder({str(photos.parent / 'tree' / 'train')!r})" in said


def test_images_that_would_be_passed_over(photos):
    for ignored in ("cat/notes.txt", "cat/._0.png", "cat/.ipynb_checkpoints/0.png"):
        (photos / ignored).parent.mkdir(exist_ok=True)
        (photos / ignored).write_text("no image")
    assert sum(len(datasets.from_folder(photos).load(split)[1]) for split in ("train", "test")) == 140
    (photos / "bird").mkdir()
    (photos / "bird" / "notes.txt").write_text("none yet")
    said = failure(datasets.from_folder, photos)
    assert "bird is a class without a PNG or JPEG" in said and "remove the folder" in said
    Image.new("RGB", (10, 12)).save(photos / "bird" / "robin.webp")
    said = failure(datasets.from_folder, photos)
    assert "robin.webp is neither PNG nor JPEG" in said and "save such images as PNG or JPEG" in said


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_a_table_is_the_same_from_everywhere(table, tmp_path, kind):
    path = tmp_path / f"flats.{kind}"
    if kind == "csv":
        table.to_csv(path, index=False)
    elif kind == "parquet":
        table.to_parquet(path)
    own = datasets.from_table(table if kind == "frame" else path, target="price")
    assert own.task == "regression" and not own.classes
    assert own.columns == ("size", "rooms", "colour=blue", "colour=green", "colour=red")
    x, y = (np.concatenate(parts) for parts in zip(own.load("train"), own.load("test"), strict=True))
    assert x.shape == (10_000, 5) and x.dtype == y.dtype == np.float32
    assert y.sum() == pytest.approx(table["price"].sum(), abs=0.1)
    assert (x[:, 2:].sum(axis=1) == 1).all() and (x[:, 4] == 1).sum() == (table["colour"] == "red").sum()
    assert len(own.load("test")[1]) == pytest.approx(2000, abs=150)
    assert "colour=red" in own._repr_html_()


def test_equal_data_have_equal_fingerprints(table, tmp_path):
    table.to_csv(tmp_path / "flats.csv", index=False)
    one = datasets.from_table(tmp_path / "flats.csv", target="price").fingerprint
    assert one == datasets.from_table(tmp_path / "flats.csv", target="price").fingerprint and len(one) == 12
    changed = table.assign(size=table["size"].where(table.index != 9999, 1))
    changed.to_csv(tmp_path / "flats.csv", index=False)
    others = [datasets.from_table(tmp_path / "flats.csv", target="price").fingerprint]
    others += [
        datasets.from_table(table, target="price", **how).fingerprint for how in ({"seed": 1}, {"test": 0.3})
    ]
    assert len({one, *others}) == 4


def test_rows_for_testing_are_no_others_than_those_for_training():
    """Also if the table was made with the random numbers of the same seed."""
    values = np.random.default_rng(0).random(10_000)
    own = datasets.from_table(pandas.DataFrame({"a": values, "price": values + 0.5}), target="price", seed=0)
    means = [own.load(split)[0].mean() for split in ("train", "test")]
    assert means == pytest.approx([0.5, 0.5], abs=0.03)


def test_what_the_target_is(table):
    assert datasets.from_table(table, target="colour").classes == ("blue", "green", "red")
    assert "classes, or amounts?" in failure(datasets.from_table, table, target="rooms")
    rooms = datasets.from_table(table, target="rooms", task="classification")
    assert rooms.classes == tuple("12345678")
    np.testing.assert_array_equal(
        np.sort(np.concatenate([rooms.load("train")[1], rooms.load("test")[1]])), np.sort(table["rooms"] - 1)
    )
    assert datasets.from_table(table, target="rooms", task="regression").task == "regression"
    assert "no numbers, such as 'blue'" in failure(
        datasets.from_table, table, target="colour", task="regression"
    )
    named = datasets.from_table(table, target="price", categories=["rooms"], drop=["size"])
    assert named.columns[:2] == ("rooms=1", "rooms=2")


@pytest.mark.parametrize(
    "value, said",
    [
        ("abc", "'size' has 'abc' where other rows have a number in line 7,002"),
        (np.nan, "'size' is empty in line 7,002"),
        ("inf", "'size' has 'inf' where other rows have a number in line 7,002"),
        ("-1e39", "'size' has '-1e39', too large for a 32-bit number, in line 7,002"),
    ],
)
def test_a_bad_row_is_named(table, tmp_path, value, said):
    bad = table.astype(object)
    bad.loc[7000, "size"] = value
    bad.to_csv(tmp_path / "bad.csv", index=False)
    assert said in failure(datasets.from_table, tmp_path / "bad.csv", target="price")


def test_a_table_that_cannot_be_used(table, tmp_path):
    assert "has no column 'nope', only size, rooms" in failure(datasets.from_table, table, target="nope")
    names = table.assign(name=[f"flat {number}" for number in range(len(table))])
    assert "drop=['name']" in failure(datasets.from_table, names, target="price")
    assert "has no row" in failure(datasets.from_table, table[:0], target="price")
    assert "no column but 'price'" in failure(datasets.from_table, table[["price"]], target="price")
    assert "is no file" in failure(datasets.from_table, tmp_path / "none.csv", target="price")
    assert "it is int" in failure(datasets.from_table, 7, target="price")
    (tmp_path / "broken.csv").write_text('a,price\n1,2\n3,4,5,6\n"7')
    assert "cannot be read" in failure(datasets.from_table, tmp_path / "broken.csv", target="price")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then nothing")
    assert "cannot be read" in failure(datasets.from_table, tmp_path / "broken.parquet", target="price")
    table.to_parquet(tmp_path / "broken.parquet")  # with a description for pandas, which is damaged then
    damaged = (tmp_path / "broken.parquet").read_bytes().replace(b'"name"', b'"kind"')
    (tmp_path / "broken.parquet").write_bytes(damaged)
    assert "cannot be read: 'name'" in failure(
        datasets.from_table, tmp_path / "broken.parquet", target="price"
    )
    assert "test is 2" in failure(datasets.from_table, table, target="price", test=2)
    assert "no split 'dev'" in failure(
        lambda: next(datasets.from_table(table, target="price").batches("dev"))
    )


def test_a_misspelt_column_is_no_column(table):
    said = failure(datasets.from_table, table, target="price", drop=["colours"])
    assert "no column 'colours', only size, rooms" in said
    said = failure(datasets.from_table, table, target="price", categories=["room"])
    assert "no column 'room', only size, rooms" in said


def test_a_bad_target_is_not_dropped(table):
    for task, value, fix in (
        (None, None, "table.dropna(subset=['price'])"),
        (None, "abc", "if these are names, pass task='classification'"),
        ("classification", 1.5, "amounts need numbers alone, and task='regression'"),
    ):
        bad = table.astype({"price": object})
        bad.loc[7, "price"] = value
        said = failure(datasets.from_table, bad, target="price", task=task)
        assert fix in said and "drop=" not in said and "categories=" not in said


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    path = tmp_path / "flats.csv"
    path.write_text(
        "size,colour,day,price,\n20,red,3.1.24,5,\nabc,red ,4.1.24,,\n21,blue,5.1.24,7,\nx,,5.1.24,,\n"
    )
    said = failure(datasets.from_table, path, target="price")
    for fact in (
        "6 things are wrong in it",
        "1. 'size' has 'abc' where other rows have a number in line 3",
        f"{path}, and in 1 more row\n       fix: repair that row",
        "'colour' is empty in line 5",
        "'colour' has 'red ' and 'red', which differ in spaces alone",
        "'day' has dates, such as '3.1.24'",
        "'price' is empty in line 3",
        "'Unnamed: 4' is empty in line 2",
        "and in 3 more rows\n       fix: fill or remove such rows, or drop=['Unnamed: 4']",
    ):
        assert fact in said.replace("'red' and 'red '", "'red ' and 'red'"), said


@pytest.mark.parametrize(
    "text, said",
    [
        ("day,price\n2024-01-03,1.5\n2024-01-04,2\n", "dates, such as '2024-01-03'"),
        ("size,price\n1,900 €\n2,901 €\n", "'price' has numbers with a sign, such as '900 €'"),
        ("size,price\n10%,1.5\n20%,2.5\n", "str.strip('%$€£ ').astype(float)"),
        (
            "size,size,price\n1,2,1.5\n",
            "two columns 'size'\n  fix: rename one; or, for this file, drop=['size.1']",
        ),
        ("size, price\n1,1.5\n", "name it ' price'"),
    ],
)
def test_what_would_be_read_wrong_is_refused(tmp_path, text, said):
    path = tmp_path / "flats.csv"
    path.write_text(text)
    assert said in failure(datasets.from_table, path, target="price")


def test_dates_that_are_names(tmp_path):
    path = tmp_path / "flats.csv"
    path.write_text("day,price\n2024-01-03,1.5\n2024-01-04,2\n")
    own = datasets.from_table(path, target="price", categories=["day"])
    assert own.columns == ("day=2024-01-03", "day=2024-01-04")
    days = pandas.DataFrame(
        {"day": pandas.date_range("2024", "2025", periods=9), "price": np.arange(9.5)[:9]}
    )
    assert "pandas.to_datetime" in failure(datasets.from_table, days, target="price")


def test_numbers_with_decimal_commas(tmp_path):
    path = tmp_path / "flats.csv"
    path.write_text("size,rent\n" + '"40,5",900\n"1.041,0",950\n' * 9 + "unknown,700\n")
    said = failure(datasets.from_table, path, target="rent")
    assert "'size' has '40,5', a number with a comma, in line 2" in said
    assert "pandas.read_csv(path, decimal=',')" in said
    named = datasets.from_table(path, target="rent", task="regression", categories=["size"])
    assert "size=40,5" in named.columns
    path.write_text('size,rent\n40,900\n"40,5",950\n')  # some are whole
    assert "decimal=','" in failure(datasets.from_table, path, target="rent")


def test_a_csv_file_of_another_kind(tmp_path):
    path = tmp_path / "flats.csv"
    path.write_text("size;rent\n40;900\n")
    assert "pandas.read_csv(path, sep=';')" in failure(datasets.from_table, path, target="rent")
    path.write_text("size;rent\n40;900\n40,5;900,5\n")
    assert "pandas.read_csv(path, sep=';')" in failure(datasets.from_table, path, target="rent")
    path.write_bytes("größe,rent\n40,900\n".encode("latin-1"))
    assert "encoding='latin-1'" in failure(datasets.from_table, path, target="rent")


def test_columns_that_only_look_alike(tmp_path):
    """A name with a number, a number as a name, and one that is that of the column to predict in a card."""
    frame = pandas.DataFrame(
        {"pm2": [1.0, 2], "pm2.5": [3.0, 4], 0: [5.0, 6], "y": [7.0, 8], "rent": [9.5, 10]}
    )
    frame.to_csv(tmp_path / "air.csv", index=False)
    frame.to_parquet(tmp_path / "air.parquet")
    for source in (frame, tmp_path / "air.csv", tmp_path / "air.parquet"):
        own = datasets.from_table(source, target="rent", test=0)
        assert own.columns == ("pm2", "pm2.5", "0", "y")
        assert own.load("train")[0].tolist() == [[1, 3, 5, 7], [2, 4, 6, 8]]
        assert sample(own)[0] == ["1.0", "3.0", "5.0", "7.0", "9.5"]
        assert "no column 'rooms'" in failure(datasets.from_table, source, target="rooms")


@pytest.mark.parametrize("size", [7, 3000, 9000])
def test_a_parquet_file_with_small_and_large_row_groups(tmp_path, size):
    rows = np.arange(10_000.0)
    pandas.DataFrame({"size": rows, "rent": rows / 2}).to_parquet(
        tmp_path / "flats.parquet", row_group_size=size
    )
    x, y = datasets.from_table(tmp_path / "flats.parquet", target="rent", test=0).load("train")
    assert x.ravel().tolist() == rows.tolist() and y.tolist() == (rows / 2).tolist()


def test_the_line_of_a_bad_row_is_that_of_an_editor(tmp_path):
    path = tmp_path / "flats.csv"
    path.write_text('size,where,rent\n\n40,"two\nlines",900\n\nabc,one,950\n')
    assert "'abc' where other rows have a number in line 6 of" in failure(
        datasets.from_table, path, target="rent"
    )


def sample(own):
    """The rows of the table in a data set's card."""
    rows = own._repr_html_().split("<tr>")[1:]
    return [re.findall("<td>(.*?)</td>", row) for row in rows]


def test_text_for_a_language_model(tmp_path):
    text = "".join(NUMBERS.choice(list("abcdé \n"), 5000))
    (tmp_path / "plays.txt").write_text(text, encoding="utf-8")
    own = datasets.from_text(tmp_path / "plays.txt", length=32, test=0)
    assert own._repr_html_().count("<tr") == 9  # a head and eight rows
    x, y = own.load("train")
    assert (own.task, own.vocabulary, x.dtype) == ("language", 256, np.int64)
    np.testing.assert_array_equal(x[:, 1:], y[:, :-1])  # what follows
    assert bytes(x.ravel().astype(np.uint8)) == text.encode()[: x.size]
    (tmp_path / "short.txt").write_text("short")
    assert "no row of 32 tokens" in failure(datasets.from_text, tmp_path / "short.txt", length=32)
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1") * 99)
    assert "is not UTF-8" in failure(datasets.from_text, tmp_path / "latin.txt", length=32)


def test_a_tokenizer_of_ones_own(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    one = tokenizers.Tokenizer(tokenizers.models.WordLevel({"to": 0, "be": 1, "?": 2}, unk_token="?"))
    one.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    (tmp_path / "hamlet.txt").write_text("to be or not to be " * 20)
    own = datasets.from_text(tmp_path / "hamlet.txt", length=6, tokenizer=one, test=0)
    assert own.vocabulary == 3 and own.load("train")[0][0].tolist() == [0, 1, 2, 2, 0, 1]
    assert sample(own)[0] == ["to be ? ? to be", "0 1 2 2 0 1", "1 2 2 0 1 0"]
    assert "the tokenizer is 'gpt2'" in failure(
        datasets.from_text, tmp_path / "hamlet.txt", length=6, tokenizer="gpt2"
    )


def test_a_class_for_each_text(tmp_path):
    frame = pandas.DataFrame({"text": ["good", "bad, truly"] * 30, "stars": [10, 9] * 30})
    frame.to_csv(tmp_path / "films.csv", index=False)
    own = datasets.from_text(tmp_path / "films.csv", length=5, target="stars", test=0)
    x, y = own.load("train")
    assert own.classes == ("9", "10") and y[:2].tolist() == [1, 0]
    assert [bytes(row).rstrip(b"\0") for row in x[:2].astype(np.uint8)] == [b"good", b"bad, "]
    numbers = datasets.from_text(frame.assign(text=[1, 22] * 30), length=2, target="stars", test=0)
    assert numbers.load("train")[0][1].tolist() == [ord("2"), ord("2")]
    assert sample(own)[0] == ["good", "103 111 111 100 0", "10"]
    assert "has no column 'review'" in failure(
        datasets.from_text, tmp_path / "films.csv", length=5, target="stars", column="review"
    )


def test_written_files_have_each_row_once(table, tmp_path):
    own = datasets.from_table(table, target="price")
    rows = own.write(str(tmp_path / "out"), rows_per_file=1000)
    assert rows == {split: len(own.load(split)[1]) for split in ("train", "test")}
    for split in rows:
        found = pyarrow.parquet.read_table(tmp_path / "out" / split)
        np.testing.assert_array_equal(found["y"].to_numpy(), own.load(split)[1])
        images = found["x"].combine_chunks()
        images = images.chunk(0) if isinstance(images, pyarrow.ChunkedArray) else images
        np.testing.assert_array_equal(images.to_numpy_ndarray(), own.load(split)[0])
    assert len(list((tmp_path / "out" / "train").iterdir())) > 1
    assert "is not empty" in failure(lambda: own.write(str(tmp_path / "out")))


@pytest.mark.parametrize("kind", ["csv", "parquet", "png", "txt"])
def test_a_damaged_file_is_refused_or_read(table, tmp_path, kind):
    """75 damaged files of each kind: rows, or the one kind of error that names the fix."""
    stream, small = io.BytesIO(), table[:40]
    if kind == "png":
        (tmp_path / "all" / "cat").mkdir(parents=True)
        Image.fromarray(NUMBERS.integers(0, 255, (9, 9, 3), np.uint8)).save(stream, "PNG")
        path = tmp_path / "all" / "cat" / "one.png"
    else:
        path = tmp_path / f"one.{kind}"
        good = {"csv": lambda: small.to_csv(index=False).encode(), "txt": lambda: "to be or nöt".encode() * 9}
        small.to_parquet(stream) if kind == "parquet" else stream.write(good[kind]())
    read, refused = 0, 0
    for seed in range(75):
        path.write_bytes(own_data.mutated(stream.getvalue(), seed))
        try:
            if kind == "png":
                own = datasets.from_folder(tmp_path / "all", test=0)
            elif kind == "txt":
                own = datasets.from_text(path, length=8, test=0)
            else:
                own = datasets.from_table(path, target="price", test=0)
            own.load("train")
            read += 1
        except DatasetError as error:
            assert "fix:" in str(error)
            refused += 1
    assert read + refused == 75 and refused > 5, (read, refused)


def test_a_source_larger_than_the_memory_is_read_and_not_kept(tmp_path, monkeypatch):
    for name, value in own_data.PLAIN.items():
        monkeypatch.setenv(name, value)
    kind, limit = "from_table, Parquet", 64_000_000
    for part, size in (("small", 20_000), ("large", int(1.2 * limit))):
        (tmp_path / part).mkdir()
        rows, _ = own_data.KINDS[kind][0](tmp_path / part, size)
    count, most, *_ = own_data.alone(own_data.stream, kind, tmp_path, limit)
    assert count == rows == own_data.written(tmp_path / "rows")[0] and most < limit
    assert sum(own_data.alone(own_data.damage, kind, tmp_path, 6)[:2]) == 6
    with pytest.raises(RuntimeError, match="its process ended with 1"):
        own_data.alone(own_data.stream, kind, tmp_path, limit, True)
