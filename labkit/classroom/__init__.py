"""What a reader has done, and, opt-in, one small file of it for a class; and the teacher's board."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    page=("board",),
    sharing=("join", "leave", "show"),
)
