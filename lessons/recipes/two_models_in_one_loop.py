# %% [markdown]
# # Train two models in one loop: a GAN
#
# A **GAN** trains a generator, which makes up images, against a discriminator, which tells them from real ones. Each model is wrapped by `prepare_model` and has an optimizer of its own. Each `backward()` averages the
# gradients of all the models that it reaches.
#
# You need lesson 03.

# %%
from course import datasets
from labkit.local import cluster

lab = cluster.start()

# %%
import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader, TensorDataset

digits = datasets.load(split="train")
images = TensorDataset(torch.tensor(digits.images).flatten(1) / 255)


def make_models():
    torch.manual_seed(0)
    nn = torch.nn
    generator = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 784), nn.Sigmoid())
    discriminator = nn.Sequential(nn.Linear(784, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
    return prepare_model(generator), prepare_model(discriminator)


def step(optimizer, answers, wanted):
    loss = torch.nn.functional.binary_cross_entropy_with_logits(answers.flatten(), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# %% [markdown]
# The discriminator sees real and generated images in *one* forward pass. Two forward passes before one `backward()` also work, but each of them would send the model's buffers again. `detach` keeps its step from training the generator.


# %%
def train_gan(config):
    generator, discriminator = make_models()
    generators = torch.optim.Adam(generator.parameters(), lr=0.001)
    discriminators = torch.optim.Adam(discriminator.parameters(), lr=0.001)
    torch.manual_seed(ray.train.get_context().get_world_rank())  # different noise on each rank
    loader = prepare_data_loader(DataLoader(images, batch_size=64))
    for _ in range(config["epochs"]):
        for (real,) in loader:
            ones = torch.ones(len(real))
            fake = generator(torch.randn(len(real), 16))
            step(discriminators, discriminator(torch.cat([real, fake.detach()])), torch.cat([ones, 0 * ones]))
            step(generators, discriminator(fake), ones)
    with torch.no_grad():
        return generator(torch.randn(10, 16)).reshape(10, 28, 28).numpy()


# %%
from labkit.settings import Settings
from ray.train import ScalingConfig

epochs = 8 if Settings.from_env().small else 60
gan = TorchTrainer(
    train_gan, train_loop_config={"epochs": epochs}, scaling_config=ScalingConfig(num_workers=2)
)
drawn = gan.fit().return_value

# %%
import matplotlib.pyplot as plt

_, places = plt.subplots(1, 10, figsize=(8, 1))
for place, image in zip(places, drawn, strict=True):
    place.imshow(image, cmap="gray")
    place.axis("off")

# %% tags=["claim"]
real, fake = digits.images.mean(axis=0) / 255, drawn.mean(axis=0)
assert drawn.shape == (10, 28, 28) and drawn.min() >= 0 and drawn.max() <= 1
assert fake[:, :3].mean() < fake[8:20, 8:20].mean()  # the stroke is in the middle, as in the real digits

# %% [markdown]
# The generator made up these images after a short run. With `epochs = 200` they look better.

# %%
lab.stop()
