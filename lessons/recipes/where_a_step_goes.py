# %% [markdown]
# # Where a step goes: a profile of two ranks
#
# Is a step slow because it computes, because it waits for other ranks, or because it does both one after the other? You'll record a few steps of two ranks, draw what one rank did, and compute which share of the exchange was hidden behind computing.
#
# You need lesson 03, and its section *Exchange while you compute*.

# %%
import torch
from labkit.local import cluster

lab = cluster.start()

# %% [markdown]
# The loop is an ordinary one. `torch.profiler.profile` records every operation of PyTorch with its thread, its start and its end. Gloo exchanges gradients in threads of its own, and its events are called `gloo:all_reduce`. The first steps are left out, because they are slower, and because DDP decides during the
# first one how it fills its buckets.

# %%
import ray.train
from ray.train.torch import prepare_model
from torch.profiler import ProfilerActivity, profile, record_function


def make_model():
    torch.manual_seed(0)
    layers = []
    for _ in range(8):
        layers += [torch.nn.Linear(512, 512), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)


# %%
def train_loop(config):
    torch.set_num_threads(1)
    model = prepare_model(make_model(), parallel_strategy_kwargs={"bucket_cap_mb": config["bucket_cap_mb"]})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(256, 512)

    def step():
        with record_function("forward"):
            loss = model(x).square().mean()
        optimizer.zero_grad()
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            optimizer.step()

    for _ in range(3):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for _ in range(3):
            step()
    events = [(e.name, e.time_range.start / 1000, e.time_range.end / 1000) for e in recorded.events()]
    of_ranks = [None, None]
    torch.distributed.all_gather_object(of_ranks, events)
    return of_ranks


# %% [markdown]
# A bucket is sent as soon as all of its gradients are computed. With 1 MB, the layers of this model fill eight buckets; with 100 MB all of them wait in the same one, apart from the first.

# %%
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def record(bucket_cap_mb):
    trainer = TorchTrainer(
        train_loop,
        train_loop_config={"bucket_cap_mb": bucket_cap_mb},
        scaling_config=ScalingConfig(num_workers=2),
    )
    return trainer.fit().return_value


profiles = {"buckets of 1 MB": record(1), "one large bucket": record(100)}

# %% [markdown]
# ## A chart of one step
# Thousands of events are too many to look at. Four rows are enough: the phases of the loop, the operations that compute, and the exchange. Time goes to the right.

# %%
COMPUTES = (
    "aten::addmm",
    "aten::mm",
    "aten::clamp_min",
    "aten::threshold_backward",
    "aten::sum",
    "aten::_foreach_add_",
)


def spans(events, *names):
    return sorted((start, end) for name, start, end in events if name in names)


def last_step(events):
    begin, _ = spans(events, "forward")[-1]
    _, end = spans(events, "optimizer")[-1]
    return [event for event in events if event[1] >= begin and event[2] <= end], begin


# %%
import matplotlib.pyplot as plt

rows = {
    "forward": ["forward"],
    "backward": ["backward"],
    "computes": COMPUTES,
    "exchanges": ["gloo:all_reduce"],
}
figure, all_axes = plt.subplots(2, 1, figsize=(9, 4), sharex=True, layout="constrained")
for axes, (title, of_ranks) in zip(all_axes, profiles.items(), strict=True):
    events, begin = last_step(of_ranks[0])
    for height, names in enumerate(rows.values()):
        bars = [(start - begin, end - start) for start, end in spans(events, *names)]
        axes.broken_barh(bars, (-height - 0.4, 0.8), color=f"C{height}")
    axes.set(title=f"rank 0, {title}", yticks=[0, -1, -2, -3], yticklabels=list(rows))
_ = all_axes[-1].set_xlabel("ms since the step began")

# %% [markdown]
# Look at *backward* and *exchanges*. With small buckets, the first exchange begins early, and operations compute above it. With one large bucket it begins when nearly all is computed, and *backward* lasts until it is over.
#
# ## The share that is hidden
# An exchange costs nothing as long as this rank computes meanwhile. So add up how long both overlap, and divide by how long the exchange lasts.


# %%
def union(pieces):
    joined = []
    for start, end in sorted(pieces):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def overlap(first, second):
    return sum(max(0, min(e, end) - max(s, start)) for s, e in first for start, end in second)


def hidden_share(events):
    exchange = union(spans(events, "gloo:all_reduce"))
    lasts = sum(end - start for start, end in exchange)
    return overlap(exchange, union(spans(events, *COMPUTES))) / lasts


for title, of_ranks in profiles.items():
    exchanges = len(spans(of_ranks[0], "gloo:all_reduce")) // 3
    shares = ", ".join(f"{hidden_share(events):.0%}" for events in of_ranks)
    print(f"{title}: {exchanges} exchanges a step; hidden on rank 0 and 1: {shares}")

# %% tags=["claim"]
small, large = (len(spans(of_ranks[0], "gloo:all_reduce")) // 3 for of_ranks in profiles.values())
assert small > large >= 1
for of_ranks in profiles.values():
    for events in of_ranks:
        assert 0 <= hidden_share(events) <= 1 and len(spans(events, "backward")) == 3
assert overlap(union([(0, 2), (1, 3), (5, 6)]), [(2, 5.5)]) == 1.5

# %% tags=["claim", "timed"]
small, large = (sum(map(hidden_share, of_ranks)) for of_ranks in profiles.values())
assert small > large

# %% [markdown]
# Two cautions. On this machine, both ranks share two cores with everything else, so the shares differ from run to run. And recording itself costs time: profile a few steps, never a whole run.
#
# On a GPU, add `ProfilerActivity.CUDA`; the exchange is then called `nccl…AllReduce`, and its events are on a stream of the GPU. `recorded.export_chrome_trace("trace.json")` writes all events for [Perfetto](https://ui.perfetto.dev), which shows every one of them.

# %%
lab.stop()
