"""A network, the distance of two models and the variables of Keras 2, for checks and benchmarks.

With several workers, ``fit`` of Keras 3 fails (ray issue 47464, keras issue 20585, both open): see lesson 04.
"""

# Set before TensorFlow is imported, in workers by RunConfig(worker_runtime_env={"env_vars": KERAS_2}). The
# others: fewer log lines; no oneDNN kernels, which round differently.
KERAS_2 = {
    "TF_USE_LEGACY_KERAS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}
