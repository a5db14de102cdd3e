"""The exercises of lesson 03: what is said of a mistake. They run on a cluster."""

import pytest

from course.exercises import check
from verdicts import solution

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("course/exercises/", "lessons/checks/"),
    pytest.mark.usefixtures("lab"),
]

PLAIN = 'getattr(model, "module", model)'
OF_ROWS = "[(model(x).argmax(dim=1) == y).sum(), len(y)]"
SUM = "    torch.distributed.all_reduce(counts)\n"
OF_RANKS = f"    counts = torch.stack([counts[0] / counts[1], torch.tensor(1.0)])\n{SUM}"


CHANGED = [
    ("03-1", {}, "solved"),
    ("03-1", {"prepare_model(cnn(seed=0))": "cnn(seed=0)"}, "gradients were not averaged"),
    ("03-1", {"loader = prepare_data_loader(": "loader = ("}, "all rows instead of its own part"),
    ("03-1", {" // ray.train.get_context().get_world_size()": ""}, "twice the global batch"),
    ("03-1", {"ray.train.get_context().get_world_size()": "2"}, "an update uses half of the global batch"),
    (
        "03-1",
        {"lr=0.1": "lr=0.1 * ray.train.get_context().get_world_size()"},
        "so the learning rate stays, too",
    ),
    ("03-1", {"batch_size=size": "batch_size=size, shuffle=True"}, "the rows are shuffled"),
    ("03-1", {"get_world_rank() == 0": "get_world_rank() < 0"}, "no report came with a checkpoint"),
    ("03-1", {"if ray.train.get_context().get_world_rank() == 0": "if True"}, "both attach a checkpoint"),
    ("03-1", {PLAIN: "model.module"}, "there is no wrapper"),
    ("03-1", {PLAIN: "model"}, "weights of the wrapper"),
    ("03-1", {PLAIN + ".state_dict()": PLAIN}, "has the model itself"),
    ("03-1", {"    for x, y in loader": "    ...\n    for x, y in loader"}, "not attempted"),
    ("03-5", {}, "solved"),
    ("03-5", {SUM: ""}, "its own rows only"),
    ("03-5", {SUM: OF_RANKS}, "mean of means"),
    ("03-5", {OF_ROWS: "[(model(x).argmax(dim=1) == y).float().mean(), 1]"}, "mean of means"),
    ("03-5", {SUM: OF_RANKS, " / counts[1]).item()": ").item()"}, "sum of the ranks"),
    ("03-5", {" / counts[1]).item()": ").item()"}, "the number of right answers"),
    ("03-5", {"return (": "return (100 * "}, "in percent"),
    ("03-5", {SUM: "", "batches:\n": f"batches:\n    {SUM}"}, "does each of them call all_reduce"),
    ("03-5", {"torch.distributed.all": "counts = torch.distributed.all"}, "in place and returns nothing"),
    ("03-5", {SUM: f"    return {SUM.strip()}\n"}, "rank 0 returns None"),
    ("03-5", {"return (counts[0] / counts[1]).item()": "return 'half'"}, "a number is expected"),
]


@pytest.mark.parametrize(("exercise", "change", "verdict"), CHANGED)
def test_what_a_check_says_of_a_run(exercise, change, verdict):
    assert verdict in repr(check(exercise, *solution(exercise, change)))


def four(batch_size=32, steps=390, lr=0.05):
    return {"batch_size": batch_size, "steps per epoch": steps, "lr": lr}


SAME, SCALED = four(), four(128, 97, 0.2)


SAID = [
    ("03-4", [SAME, SCALED], "solved"),
    ("03-4", [four(steps=...), SCALED], "not attempted"),
    ("03-4", [four(batch_size=128), SCALED], "512 images in an update"),
    ("03-4", [four(steps=1562), SCALED], "not only those of one"),
    ("03-4", [four(lr=0.2), SCALED], "hasn't grown"),
    ("03-4", [SAME, four(128, 390, 0.2)], "with a global batch of 128"),
    ("03-4", [SAME, four(128, 97, 0.05)], "can be bolder"),
    ("03-4", [SAME, four(128, 97, 0.1)], "square root"),
    ("03-4", [SAME, four(128, 97, 0.8)], "a factor of 16"),
    ("03-4", [SAME, four(512, 97, 0.2)], "what one worker uses"),
]


@pytest.mark.parametrize(("exercise", "answers", "verdict"), SAID)
def test_what_a_check_says(exercise, answers, verdict):
    assert verdict in repr(check(exercise, *answers))
