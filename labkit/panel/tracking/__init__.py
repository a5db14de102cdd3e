"""What runs in the worker: the training loop's calls become events that are sent to the panel."""
