"""Lesson 11: how many GPUs, a model that doesn't learn, a part of a sharded checkpoint, a batch in parts."""

import math
import tempfile
from functools import partial
from typing import Any

from course.exercises.answers import Wrong, expect_function, result_of, returns
from course.exercises.registry import Lesson
from course.exercises.running import returned

LESSON = Lesson("11", "Models larger than one process")


@LESSON.exercise(
    "11-1 · How many GPUs",
    "What of a GPU's memory is left for its share of the 16 bytes?",
    "Each GPU has activations of its own, so a GPU has `gpu_gb - activations_gb` for the rest.",
    "`math.ceil(16 * parameters / 1e9 / (gpu_gb - activations_gb))`.",
)
def _how_many(fewest_gpus: Any) -> None:
    for parameters, gpu, activations in ((70e9, 80, 30), (7e9, 80, 20), (10e9, 80, 40)):
        total, room = 16 * parameters / 1e9, gpu - activations
        right = math.ceil(total / room)
        mistakes = {
            math.ceil((total + activations) / gpu): "each GPU has activations of its own",
            math.ceil(total / gpu): "the activations need room, too",
            math.ceil(total / 4 / room): "that is enough for the parameters alone",
            math.floor(total / room): "that is too few: round up",
            total / room: "round up: a GPU can't be divided",
            math.floor(total / room) + 1: "one fewer is enough: it fits exactly",
        }
        name = "fewest_gpus"
        returns(fewest_gpus, (parameters, gpu, activations), right, name=name, mistakes=mistakes)


@LESSON.exercise(
    "11-2 · A model that doesn't learn",
    "`fully_shard` replaces the parameters of the model by new ones. Which ones does the optimizer update?",
    "Create the optimizer after the last `fully_shard`. And who gathers the blocks?",
    "`fully_shard(block, mesh=mesh)` for each block in `model.blocks`, then for the model, then Adam.",
    seconds=90,
    stuck="a collective operation that only some ranks call",
)
def _learns(train_sharded: Any) -> None:
    config = {"model": _network, "inspect": _inspected, "steps": 2}
    wrong = returned(train_sharded, config, name="train_sharded")
    if not isinstance(wrong, str):
        raise Wrong("train_sharded has to return config['inspect'](model), as before")
    if wrong:
        raise Wrong(wrong)


@LESSON.exercise(
    "11-3 · A body without its head",
    "`dcp.load` reads what is in the dict that you pass, and nothing else.",
    'The checkpoint has the weights below the key "model". Leave out the names that begin with "head.".',
    '`get_model_state_dict(model)` without the head, then `dcp.load({"model": body}, checkpoint_id=folder)`.',
    seconds=90,
    stuck="a collective operation that only some ranks call: all ranks call dcp.load",
)
def _body(load_body: Any) -> None:
    expect_function(load_body, "load_body")
    with tempfile.TemporaryDirectory() as folder:
        config = {"load": load_body, "folder": folder}
        wrong = returned(_reads, config, name="the loop with your load_body")
    if wrong:
        raise Wrong(wrong)


def _set_sync(model: Any, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
    """As the method of a model that is sharded."""
    model.sync = requires_gradient_sync


@LESSON.exercise(
    "11-4 · A batch in parts",
    "`backward()` adds to the gradients that are there. When are they cleared, and when are they used?",
    "Each part's loss is the mean of its own rows, and the batch's loss is the mean of these means.",
    "`model.set_requires_gradient_sync(last)`, then `(loss_of(model, x, y) / len(parts)).backward()`.",
    seconds=30,  # the first optimizer of a process imports for seconds
)
def _in_parts(accumulate: Any) -> None:
    import torch

    parts = [(torch.rand(4, 3), torch.rand(4, 1)) for _ in range(4)]
    models, synced = [torch.nn.Linear(3, 1) for _ in range(2)], []
    models[0].set_requires_gradient_sync = partial(_set_sync, models[0])
    models[0].weight.register_hook(lambda _: synced.append(getattr(models[0], "sync", None)))
    models[1].load_state_dict(models[0].state_dict())
    begin = models[0].weight.detach().clone()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    models[0](torch.ones(1, 3)).sum().backward()  # left from the step before
    left = 0.1 * models[0].weight.grad
    synced.clear()
    result_of(accumulate, models[0], optimizers[0], _squared, parts, what="accumulate")
    _squared(models[1], *(torch.cat(one) for one in zip(*parts, strict=True))).backward()
    optimizers[1].step()
    moved, wanted = models[0].weight.detach() - begin, models[1].weight.detach() - begin
    near = partial(torch.allclose, rtol=1e-3, atol=1e-6)
    if near(moved, 4 * wanted):
        raise Wrong("the update is 4 times too large: each of 4 parts counts a quarter")
    if near(moved, torch.zeros(1)):
        raise Wrong("the weights are those from before: call optimizer.step()")
    if near(moved, wanted - left):
        raise Wrong("the gradients from before are in the update, too: clear them first")
    if len(synced) == 1:
        raise Wrong("one backward for all parts needs the activations of all: call it for each part")
    if not near(moved, wanted):
        raise Wrong("the update is not that of the whole batch: one zero_grad, 4 backward, one step")
    if synced != [False, False, False, True]:
        raise Wrong(
            "only the last backward should communicate: set_requires_gradient_sync(False), and True before it"
        )


def _squared(model: Any, x: Any, y: Any) -> Any:
    return (model(x) - y).square().mean()


def _network(head: int = 2, seed: int = 0) -> Any:
    """Two blocks and a head of so many outputs, for rows of 4 numbers; it is made by the loop."""
    import torch

    torch.manual_seed(seed)
    model = torch.nn.Sequential()
    model.blocks = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(2)])
    model.head = torch.nn.Linear(4, head)
    return model


def _whole(model: Any) -> dict[str, Any]:
    parameters = model.named_parameters()
    return {name: one.full_tensor() if hasattr(one, "full_tensor") else one for name, one in parameters}


def _inspected(model: Any) -> str:
    """What is wrong with a trained `_network`; all ranks call it."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    before, after = dict(_network().named_parameters()), _whole(model)
    if not all(isinstance(one, DTensor) for one in model.parameters()):
        return "some parameters are whole on each rank: call fully_shard for the model, too, after its blocks"
    if not all(isinstance(block, FSDPModule) for block in model.blocks):
        return "the blocks have no fully_shard of their own, so each step gathers the whole model at once"
    if not all((after[name] != before[name]).any() for name in before):
        return "the weights are those from before: the optimizer has parameters that the model no longer uses"
    return ""


def _reads(config: dict) -> str:
    """What is wrong with a model that has another head than the checkpoint, after `load_body`."""
    import ray.train
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (ray.train.get_context().get_world_size(),))
    old, new = (fully_shard(_network(head, seed=head), mesh=mesh) for head in (6, 2))
    kept = _whole(new)["head.weight"].clone()
    dcp.save({"model": get_model_state_dict(old)}, checkpoint_id=config["folder"])
    try:
        config["load"](new, config["folder"])
    except dcp.CheckpointException as error:  # a BaseException, so no check would name it
        refused = str(error).strip().splitlines()[-1]
        return f"dcp.load refused: {refused}. What is in the dict that you pass, and below which key?"
    except RuntimeError as error:
        if "Missing key" not in str(error):
            raise
        return "the model was given a dict without its head: dcp.load has filled the model's tensors already"
    old, new = _whole(old), _whole(new)
    if any((old[name] != new[name]).any() for name in old if name.startswith("blocks.")):
        return "the body differs from the one in the checkpoint: dcp.load fills the dict; is it the model's?"
    if (new["head.weight"] != kept).any():
        return "the new head has changed, and the checkpoint has none of its size"
    return ""
