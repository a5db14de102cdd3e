"""An object store, either the embedded S3 server or any other, and uploads into it."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    explain=("hint_for",),
    names=("check_run_name",),
    store=("Store", "connect", "start"),
    uploads=("Uploaded", "upload", "upload_shards"),
)
