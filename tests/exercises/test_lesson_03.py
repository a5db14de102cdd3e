"""The exercises of lesson 03: what is said of a mistake. They run on a cluster."""

import pytest

from verdicts import checks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("course/exercises/", "lessons/checks/"),
    pytest.mark.usefixtures("lab"),
]

PLAIN = 'getattr(model, "module", model)'
OF_ROWS = "[(model(x).argmax(dim=1) == y).sum(), len(y)]"
SUM = "    torch.distributed.all_reduce(counts)\n"
OF_RANKS = f"    counts = torch.stack([counts[0] / counts[1], torch.tensor(1.0)])\n{SUM}"


def four(batch_size=32, steps=390, lr=0.05):
    return {"batch_size": batch_size, "steps per epoch": steps, "lr": lr}


SAME, SCALED = four(), four(128, 97, 0.2)


ANSWERS = {
    "03-1": [
        ({"prepare_model(cnn(seed=0))": "cnn(seed=0)"}, "gradients were not averaged"),
        ({"loader = prepare_data_loader(": "loader = ("}, "all rows instead of its own part"),
        ({" // ray.train.get_context().get_world_size()": ""}, "twice the global batch"),
        ({"ray.train.get_context().get_world_size()": "2"}, "an update uses half of the global batch"),
        ({"lr=0.1": "lr=0.1 * ray.train.get_context().get_world_size()"}, "so the learning rate stays, too"),
        ({"batch_size=size": "batch_size=size, shuffle=True"}, "the rows are shuffled"),
        ({"get_world_rank() == 0": "get_world_rank() < 0"}, "no report came with a checkpoint"),
        ({"if ray.train.get_context().get_world_rank() == 0": "if True"}, "both attach a checkpoint"),
        ({PLAIN: "model.module"}, "there is no wrapper"),
        ({PLAIN: "model"}, "weights of the wrapper"),
        ({PLAIN + ".state_dict()": PLAIN}, "has the model itself"),
        ({"    for x, y in loader": "    ...\n    for x, y in loader"}, "not attempted"),
    ],
    "03-5": [
        ({SUM: ""}, "its own rows only"),
        ({SUM: OF_RANKS}, "mean of means"),
        ({OF_ROWS: "[(model(x).argmax(dim=1) == y).float().mean(), 1]"}, "mean of means"),
        ({SUM: OF_RANKS, " / counts[1]).item()": ").item()"}, "sum of the ranks"),
        ({" / counts[1]).item()": ").item()"}, "the number of right answers"),
        ({"return (": "return (100 * "}, "in percent"),
        ({SUM: "", "batches:\n": f"batches:\n    {SUM}"}, "does each of them call all_reduce"),
        ({"torch.distributed.all": "counts = torch.distributed.all"}, "in place and returns nothing"),
        ({SUM: f"    return {SUM.strip()}\n"}, "rank 0 returns None"),
        ({"return (counts[0] / counts[1]).item()": "return 'half'"}, "a number is expected"),
    ],
    "03-4": [
        ([four(steps=...), SCALED], "not attempted"),
        ([four(batch_size=128), SCALED], "512 images in an update"),
        ([four(steps=1562), SCALED], "not only those of one"),
        ([four(lr=0.2), SCALED], "hasn't grown"),
        ([SAME, four(128, 390, 0.2)], "with a global batch of 128"),
        ([SAME, four(128, 97, 0.05)], "can be bolder"),
        ([SAME, four(128, 97, 0.1)], "square root"),
        ([SAME, four(128, 97, 0.8)], "a factor of 16"),
        ([SAME, four(512, 97, 0.2)], "what one worker uses"),
    ],
}


test_what_a_check_says = checks(ANSWERS)
