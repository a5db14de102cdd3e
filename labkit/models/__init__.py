"""Networks, plain training loops and checkpoints on disk, for torch and for Keras."""
