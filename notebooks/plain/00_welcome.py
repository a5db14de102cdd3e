"""Train a small model on handwritten digits, in one process in plain PyTorch.

Prints the loss of each epoch and the accuracy on held-out images, about 0.96, after two seconds.
"""

from pathlib import Path

import pyarrow.parquet
import torch

DIGITS = Path(__file__).resolve().parents[2] / "datasets/digits.parquet"


def load_digits():
    table = pyarrow.parquet.read_table(DIGITS)
    images = table["image"].combine_chunks().to_numpy_ndarray()
    return torch.tensor(images, dtype=torch.float32) / 255, torch.tensor(table["label"].to_numpy())


def build_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(28 * 28, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 10),
    )


def main(epochs=10, batch_size=64):
    x, y = load_digits()
    x_train, y_train, x_test, y_test = x[:1437], y[:1437], x[1437:], y[1437:]
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(y_train)).split(batch_size):
            loss = torch.nn.functional.cross_entropy(model(x_train[rows]), y_train[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        print(f"epoch {epoch}: loss {total / len(y_train):.3f}")
    with torch.no_grad():
        accuracy = (model(x_test).argmax(dim=1) == y_test).float().mean().item()
    print(f"accuracy on {len(y_test)} test images: {accuracy:.3f}")


if __name__ == "__main__":
    main()
