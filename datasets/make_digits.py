"""Make digits.parquet from the handwritten digits that scikit-learn distributes.

scikit-learn is needed for this alone, so it has an environment of its own:

    python3 -m venv /tmp/digits && /tmp/digits/bin/pip install scikit-learn==1.7.2 pyarrow
    /tmp/digits/bin/python datasets/make_digits.py           # write it, print its checksum
    /tmp/digits/bin/python datasets/make_digits.py --check   # compare what ships with what is made

The bytes of the file depend on the version of pyarrow, its rows do not: --check compares rows.
"""

import argparse
import hashlib
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # labkit, without installing it and all that it needs

from course.datasets import Dataset, read_rows  # noqa: E402

FILE = ROOT / "datasets" / "digits.parquet"
CLASSES = tuple("0123456789")
SMALL, LARGE, SIDE = 8, 20, 28  # pixels: in the source, scaled, with its border
TEST_ROWS_PER_CLASS = 36  # 360 of 1,797 rows, a fifth


def scaling() -> np.ndarray:
    """[28, 8]: each large pixel as a sum of small ones, by cubic convolution (a = -0.5)."""
    # Centres of the large pixels, counted in small ones; beyond the edge of what was scanned it is black.
    centres = (np.arange(SIDE) - (SIDE - LARGE) / 2 + 0.5) * SMALL / LARGE - 0.5
    return np.array([[cubic(abs(centre - column)) for column in range(SMALL)] for centre in centres])


def cubic(distance: float) -> float:
    if distance < 1:
        return 1.5 * distance**3 - 2.5 * distance**2 + 1
    if distance < 2:
        return -0.5 * distance**3 + 2.5 * distance**2 - 4 * distance + 2
    return 0.0


def scale(small: np.ndarray) -> np.ndarray:
    """Values 0 to 16 [n, 8, 8] -> uint8 [n, 28, 28]: 20x20 pixels in the middle, as in MNIST."""
    weights = scaling()
    large = np.einsum("ri,nij,cj->nrc", weights, small, weights) * (255 / 16)
    # To a thousandth first: no processor may round a half in another way than the others.
    return np.clip(np.rint(large.round(3)), 0, 255).astype(np.uint8)


def order(labels: np.ndarray) -> np.ndarray:
    """The rows for training, then those for testing: 36 of each digit; both shuffled, always alike."""
    random = np.random.default_rng(0)
    shuffled = random.permutation(len(labels))
    of_each = [np.flatnonzero(labels[shuffled] == digit)[:TEST_ROWS_PER_CLASS] for digit in range(10)]
    test = np.zeros(len(labels), bool)
    test[np.concatenate(of_each)] = True
    return np.concatenate([random.permutation(shuffled[~test]), random.permutation(shuffled[test])])


def make() -> Dataset:
    from sklearn.datasets import load_digits

    digits = load_digits()
    rows = order(digits.target)
    labels = digits.target.astype(np.int64)
    return Dataset(scale(digits.images)[rows], labels[rows], "digits", "train and test", CLASSES)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    made = make()
    if parser.parse_args().check:
        images, labels = read_rows(str(FILE))
        same = np.array_equal(made.images, images) and np.array_equal(made.labels, labels)
        print("the same rows" if same else "the rows differ")
        return int(not same)
    made.to_parquet(FILE)
    print(f"{FILE}: {len(made):,} rows, {FILE.stat().st_size:,} bytes")
    print("sha256", hashlib.sha256(FILE.read_bytes()).hexdigest())
    return 0


if __name__ == "__main__":
    sys.exit(main())
