"""The lessons' networks in PyTorch, the plain training loop, and checkpoints on disk."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    checkpoint=("load_state", "parameter_distance", "save_state"),
    networks=("cnn", "mlp", "to_input", "unwrapped"),
    training=("batches", "evaluate", "train_epoch"),
)
