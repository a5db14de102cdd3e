"""What works with Ray Train, Tune and TorchDistributor under a panel: rows that are run, and their page."""
