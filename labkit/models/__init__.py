"""The network that exercises and checks share, and how far two models are apart."""
