"""Say what `ray.train.torch.prepare_data_loader` changes in a loader without a word, and the line to write.

With two or more workers it builds a new loader, with a `DistributedSampler` over all rows of the data set.
"""

import sys
from collections.abc import Iterator
from typing import Any

_DROPPED = {
    "persistent_workers": False,
    "prefetch_factor": 2,
    "multiprocessing_context": None,
    "in_order": True,
}


def notes_on(loader: Any, prepared: Any) -> Iterator[str]:
    """Yield a sentence for each setting of `loader` that the `prepared` one has not."""
    inner = getattr(prepared, "_dataloader", prepared)
    if inner is loader:  # one worker, a stream, or a sampler that deals the rows itself
        return
    if loader.batch_size is None and loader.batch_sampler is not None:
        yield (
            f"prepare_data_loader drops {_name(loader.batch_sampler)}: the loop gets single rows without a "
            "batch dimension. Give the loader batch_size instead, or deal the batches to the ranks yourself "
            "and write prepare_data_loader(loader, add_dist_sampler=False)"
        )
    elif _chooses_rows(loader):
        yield _replaced(loader)
    if type(inner) is not type(loader):
        yield (
            f"prepare_data_loader makes a plain DataLoader of your {_name(loader)}. To keep it, give it "
            "sampler=DistributedSampler(dataset) yourself: then it builds no new one"
        )
    changed = []
    for name, default in _DROPPED.items():
        value = getattr(loader, name, default)
        if loader.num_workers and value not in (default, None):
            changed.append(f"{name}={value!r}")
    if changed:
        yield (
            f"prepare_data_loader drops {' and '.join(changed)}. To keep them, give the loader "
            "sampler=DistributedSampler(dataset) yourself: then it builds no new one"
        )


def _chooses_rows(loader: Any) -> bool:
    """Return whether a sampler does more than go through all rows, in order or shuffled."""
    sampler = loader.sampler
    samplers = sys.modules["torch.utils.data"]
    if type(sampler) is samplers.RandomSampler:
        return sampler.replacement or sampler.num_samples != len(loader.dataset)
    return type(sampler) is not samplers.SequentialSampler


def _replaced(loader: Any) -> str:
    replaced = (
        f"prepare_data_loader replaces {_name(loader.sampler)} by a DistributedSampler over all "
        f"{len(loader.dataset):,} rows"
    )
    if hasattr(loader.sampler, "indices"):  # SubsetRandomSampler: the rows outside are perhaps for validation
        return (
            f"{replaced}. For some of them, load torch.utils.data.Subset(dataset, indices) with shuffle=True"
        )
    return (
        f"{replaced}. To keep it, write prepare_data_loader(loader, add_dist_sampler=False), and give the "
        "sampler a generator with a seed of each rank, so that the ranks draw different rows"
    )


def _name(part: Any) -> str:
    return type(part).__name__
