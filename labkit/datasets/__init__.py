"""Images as data sets: those that ship, those that are downloaded, those that are rendered."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    catalog=("load", "rendered", "shipped"),
    images=("Dataset",),
    rows=("read_rows",),
)
