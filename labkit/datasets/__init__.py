"""Data sets: those that ship, those that are downloaded or rendered, and your own."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    catalog=("load", "rendered", "shipped"),
    folders=("from_folder",),
    huggingface=("from_huggingface",),
    images=("Dataset",),
    own=("OwnData",),
    rows=("read_rows",),
    tables=("from_table",),
    texts=("from_text",),
)
