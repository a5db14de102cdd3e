"""The lessons' networks in Keras, the backend's settings and the panel's callback."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    backend=("KERAS_2", "KERAS_3", "prepare"),
    callback=("PanelCallback",),
    networks=("cnn", "mlp", "to_input", "weights_distance"),
)
