"""Images of your own: what good folders become, and what is said about the others."""

import io
import re

import numpy as np
import pytest
from PIL import Image

from labkit import machine
from labkit.datasets import from_folder
from labkit.errors import LabError


def paint(path, value=90, size=(12, 10), mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), value, np.uint8)).convert(mode).save(path, **options)


@pytest.fixture
def photos(tmp_path):
    for name, grey in (("cat", 40), ("dog", 200)):
        for number in range(20):
            paint(tmp_path / "photos" / name / f"{number}.png", grey + number % 5)
    return tmp_path / "photos"


def refused(path, **options) -> LabError:
    with pytest.raises(LabError) as caught:
        from_folder(path, **options)
    return caught.value


def pair(tmp_path, image, format="PNG", **options):
    """One image of each of two classes, with the same bytes."""
    stream = io.BytesIO()
    image.save(stream, format, **options)
    for name in "ab":
        (tmp_path / "two" / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "two" / name / "1.png").write_bytes(stream.getvalue())
    return tmp_path / "two"


def test_a_tiff_that_is_turned_and_one_with_an_infinite_pixel(tmp_path):
    grey = np.arange(0, 128, 4, dtype=np.uint8).reshape(4, 8)
    folder = pair(tmp_path, Image.fromarray(grey), "TIFF", tiffinfo={274: 6})
    np.testing.assert_array_equal(from_folder(folder).x[0], np.rot90(grey, -1))
    deep = np.linspace(0, 1, 32, dtype=np.float32).reshape(4, 8)
    deep[0, 0] = np.inf
    x = from_folder(pair(tmp_path, Image.fromarray(deep), "TIFF")).x[0]
    assert x[0, 0] == x[-1, -1] == 255 and np.ptp(x) > 200


@pytest.mark.parametrize("options", [{}, {"transparency": 0}])
def test_a_palette_of_greys_is_grey_and_one_of_colours_is_not(tmp_path, options):
    grey = Image.fromarray(np.arange(0, 128, 4, dtype=np.uint8).reshape(4, 8)).convert("P")
    assert from_folder(pair(tmp_path, grey, "GIF", **options)).x.shape == (2, 4, 8)
    colours = Image.fromarray(np.arange(96, dtype=np.uint8).reshape(4, 8, 3)).convert("P")
    assert from_folder(pair(tmp_path, colours)).x.shape == (2, 4, 8, 3)


@pytest.mark.parametrize("size", [((32, 32), 3), (2**31, 1), (True, 3), (3, 0), "ab"])
def test_a_size_that_is_none(photos, size):
    assert "is no height and width" in refused(photos, size=size).fact


def test_a_folder_of_images(photos):
    own = from_folder(photos)
    assert repr(own) == "<photos: 40 images of 12×10×3, classification, 2 classes>"
    assert own.classes == ("cat", "dog") and own.x.dtype == np.uint8 and own.y.dtype == np.int64
    np.testing.assert_array_equal(own.x.mean(axis=(1, 2, 3)) > 100, own.y == 1)  # each has its own label
    assert np.flatnonzero(np.diff(own.y)).size > 5  # and they are not in the order of the folders
    assert own._repr_html_().count("<img") == 8
    assert own.fingerprint == from_folder(photos).fingerprint != from_folder(photos, seed=1).fingerprint
    assert from_folder(photos, size=np.array([8, 6])).x.shape[1:] == (8, 6, 3)


def test_every_visible_file_is_an_image_that_pillow_opens_whatever_its_name(photos):
    for name, kind in {"1.JPE": "JPEG", "p-1": "PNG", "1.jp2": None, "1.gif": None, "1.tif": None}.items():
        paint(photos / "cat" / name, format=kind)
    assert len(from_folder(photos)) == 45
    for name in ("notes.txt", "1.heic"):
        (photos / "cat" / name).write_bytes(b"\0\0\0\x18ftypheic")
        error = refused(photos)
        assert f"1 file isn't an image that Pillow can read:\n    {photos / 'cat' / name}" in error.fact
        (photos / "cat" / name).rename(photos / name)
        assert f"{name} is in no class folder" in refused(photos).fact
        (photos / name).unlink()


SYSTEM = [
    *(".DS_Store", "._0.jpg", ".ipynb_checkpoints/0.png", "Thumbs.db", "ehthumbs_vista.db", "desktop.ini"),
    *("@eaDir/0.jpg/SYNOPHOTO_THUMB_M.jpg", "#recycle/0.jpg", "$RECYCLE.BIN/$I123.jpg", "lost+found/x"),
    *("System Volume Information/x.dat", "__MACOSX/cat/._0.jpg", ".Trash-1000/files/0.jpg", "~$notes.docx"),
    *("Icon\r", "@Recycle/0.jpg", ".thumbnails/0.jpg", ".git/HEAD"),
]


def test_what_a_system_left_is_passed_over_and_a_class_may_have_a_strange_name(photos):
    for place in [folder / name for name in SYSTEM for folder in (photos, photos / "cat")]:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"no image")
    own = from_folder(photos)
    assert len(own) == 40 and own.classes == ("cat", "dog")
    names = ("#1", "$5", "@", "_", "train", "bus", "crash test", "lost")
    for name in names:
        paint(photos.parent / "signs" / name / "_DSC0001.jpg")
    assert from_folder(photos.parent / "signs").classes == tuple(sorted(names))


SPLITS = [
    *(("Training", "Testing"), ("training_set", "test_set"), ("seg_train", "seg_test", "seg_pred")),
    *(("train",), ("TRAIN", "VAL"), ("train", "eval"), ("trainingSet", "testSet"), ("Train", "validation")),
    *(("train2017", "val2017"), ("train_images", "test"), ("Train Data", "Validation-Data")),
    *(("trainval", "test"), ("cat_train", "cat_test", "dog_train"), ("trainA", "testA")),
]


@pytest.mark.parametrize("names", SPLITS)
def test_folders_that_are_splits_are_no_classes(tmp_path, names):
    for name in names:
        for kind in ("cat", "dog"):
            for place in ("pets/{0}/{1}", "by class/{1}/{0}", "deep/pets/{0}/{1}"):
                paint(tmp_path / place.format(name, kind) / "1.png")
    error = refused(tmp_path / "pets")
    assert "have the names of splits" in error.fact
    code = re.search(r"from_folder\('.*?'\)", error.fix)[0]
    assert eval(code, {"from_folder": from_folder}).classes == ("cat", "dog")
    for place in ("by class", "deep"):
        assert "have the names of splits" in refused(tmp_path / place).fact


def test_folders_that_are_no_classes(photos):
    assert "no such folder" in refused(photos / "bird").fact
    error = refused(photos.parent)
    assert "its only folder is photos" in error.fact
    assert eval(error.fix.rpartition(", ")[2], {"from_folder": from_folder}).classes == ("cat", "dog")
    (photos / "bird").mkdir()
    assert "bird has no image" in refused(photos).fact
    assert "it has no folder" in refused(photos / "bird").fact
    (photos / "bird").rmdir()
    for name in ("Ka\u0308se", "K\u00e4se"):
        paint(photos / name / "1.png")
    assert "the same name, written in two ways" in refused(photos).fact


def test_links_are_followed(photos):
    for number in range(5):
        paint(photos.parent / "elsewhere" / f"more-{number}.png")
    (photos / "cat" / "more").symlink_to(photos.parent / "elsewhere")
    (photos / "bird").symlink_to(photos.parent / "elsewhere")
    (photos / "dog" / "one.png").symlink_to(photos.parent / "elsewhere" / "more-0.png")
    own = from_folder(photos)
    assert own.classes == ("bird", "cat", "dog") and np.bincount(own.y).tolist() == [5, 25, 21]
    for name, target in (("gone.png", photos / "nowhere"), ("loop", photos), ("self", photos / "cat")):
        (photos / "cat" / name).symlink_to(target)
        assert f"{name} is no file, or a link to nothing or to a folder that" in refused(photos).fact
        (photos / "cat" / name).unlink()


def test_sizes(photos, monkeypatch):
    paint(photos / "dog" / "large.jpg", size=(30, 40))
    error = refused(photos)
    assert "large.jpg has 30×40 pixels, and" in error.fact and "12×10 (height×width)" in error.fact
    size = eval(error.fix.partition("size=")[2])
    assert from_folder(photos, size=size).x.shape == (41, 12, 10, 3)
    for wrong in (16, (), (0, 4), (1.5, 2), "44"):
        assert "is no height and width" in refused(photos, size=wrong).fact
    assert "test is 2" in refused(photos, test=2).fact
    monkeypatch.setattr(machine, "memory", lambda: (10**9, 20_000))
    error = refused(photos, size=(12, 10))
    assert "GB of memory" in error.fact and "pass a smaller size=; larger data" in error.fix
    assert len(from_folder(photos, size=(4, 4))) == 41


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_a_black_drawing_on_a_transparent_ground_is_on_white(tmp_path, mode):
    alpha = np.zeros((16, 16), np.uint8)
    alpha[4:12, 2:8] = 255
    image, options = Image.fromarray(np.dstack([np.zeros((16, 16, 3), np.uint8), alpha])), {}
    if mode == "P":
        image, options = Image.fromarray((alpha > 0).astype(np.uint8), "P"), {"transparency": 0}
        image.putpalette([0, 0, 0, 0, 0, 0])
    x = from_folder(pair(tmp_path, image.convert(mode), **options)).x
    assert x.ndim == (4 if mode == "RGBA" else 3)
    np.testing.assert_array_equal(x[0].reshape(16, 16, -1)[..., 0] == 0, alpha > 0)


@pytest.mark.parametrize("bits", [8, 12, 16])
@pytest.mark.parametrize("kind", ["uint16 png", "int32 tiff", "float32 tiff"])
def test_grey_images_of_more_than_8_bits(tmp_path, kind, bits):
    dtype, format = kind.split()
    deep = np.linspace(0, 2**bits - 1, 64).reshape(8, 8).astype(dtype)
    x = from_folder(pair(tmp_path, Image.fromarray(deep), format)).x
    assert x.shape == (2, 8, 8) and len(np.unique(x)) == 64 and (x.min(), x.max()) == (0, 255)
    paint(tmp_path / "two" / "a" / "grey.png", 7, size=(8, 8), mode="L")  # of 8 bits: it stays what it is
    assert sorted(image.max() for image in from_folder(tmp_path / "two").x) == [7, 255, 255]


def test_other_modes(photos, tmp_path):
    ink = Image.new("CMYK", (8, 8), (0, 255, 255, 0))  # red
    assert from_folder(pair(tmp_path, ink, "TIFF")).x[0, 0, 0].tolist() == [255, 0, 0]
    frames = [Image.new("L", (8, 8), grey) for grey in (10, 200)]
    moving = pair(tmp_path, frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert np.unique(from_folder(moving).x).tolist() == [10]  # the first frame
    paint(photos / "cat" / "0.png", mode="L")
    assert from_folder(photos).x.shape[1:] == (12, 10, 3)  # grey only if all are
    for file in photos.rglob("*.png"):
        paint(file, mode="1" if file.name == "1.png" else "L")
    assert from_folder(photos).x.shape[1:] == (12, 10)


def test_an_image_is_turned_as_its_camera_says(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # its top is on the right
    image = Image.fromarray(np.repeat([[255] * 6 + [0] * 6], 10, axis=0).astype(np.uint8))  # white left
    x = from_folder(pair(tmp_path, image, "JPEG", exif=exif)).x
    assert x.shape[1:] == (12, 10) and x[0, :4].mean() > 200 and x[0, -4:].mean() < 50
    assert from_folder(pair(tmp_path, image, "JPEG", exif=b"Exif\0\0garbage")).x.shape[1:] == (10, 12)
