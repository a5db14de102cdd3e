"""Train a small model on handwritten digits, in one process in plain PyTorch: the loop of lesson 00.

Prints the loss of each epoch and the accuracy on held-out images, about 0.96, after two seconds.
"""

from pathlib import Path

import pyarrow.parquet
import torch
from torch.utils.data import DataLoader, TensorDataset

DIGITS = Path(__file__).resolve().parents[2] / "datasets/digits.parquet"


def load_digits():
    table = pyarrow.parquet.read_table(DIGITS)
    images = table["image"].combine_chunks().to_numpy_ndarray()
    return torch.tensor(images, dtype=torch.float32) / 255, torch.tensor(table["label"].to_numpy())


def main(epochs=20, batch_size=64):
    x, y = load_digits()
    x_test, y_test = x[1437:], y[1437:]
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(x[:1437], y[:1437]), batch_size=batch_size)
    for epoch in range(epochs):
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")
    with torch.no_grad():
        accuracy = (model(x_test).argmax(dim=1) == y_test).float().mean().item()
    print(f"accuracy on {len(y_test)} test images: {accuracy:.3f}")


if __name__ == "__main__":
    main()
