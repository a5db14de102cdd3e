"""The exercises of lesson 06b: what is said of a mistake."""

import pytest

from verdicts import checks

pytestmark = [pytest.mark.slow, pytest.mark.covers("course/exercises/", "lessons/checks/")]


CHANGED = {
    "06b-2": [
        ({".eval()": ""}, "is the model in training mode?"),
        ({" / 255": ""}, "do the pixels go from 0 to 1"),
        ({"right.numpy()": "[right.mean().item()]"}, "1 value for 4 rows"),
        ({"right.numpy()": "right.mean().item()"}, "1 value for 4 rows"),
        (
            {"self.model = load().eval()": "self.load = load", "self.model(": "self.load().eval()("},
            "for 2 batches the model was loaded 2 times",
        ),
        ({'{"right": ': '{"hits": '}, "a dict with the column `right` is expected"),
    ],
    "06b-4": [
        ({" - own": ""}, "holds `own` CPUs as well"),
        ({" - 1": ""}, "no CPU is free for the tasks that read"),
        ({" - training": ""}, "the training holds its CPUs meanwhile"),
        ({"max(0, cpus - training - own - 1)": "cpus - training - own - 1"}, "no negative number"),
        ({" - own - 1": ""}, "nothing is left for the validation's task"),
    ],
    "06b-3": [
        ({'"quick": "function"': '"quick": "trainer"'}, "takes longer than the two seconds"),
        ({'"sharded": "trainer"': '"sharded": "map_batches"'}, "they have no process group"),
        ({'"images": "map_batches"': '"images": "trainer"'}, "ends the run of all ranks"),
        ({'"old code": "trainer"': '"old code": "function"'}, "needs a process group"),
        ({'"quick": "function"': '"quick": "task"'}, "choose function, trainer or map_batches"),
    ],
}


test_what_a_check_says_of_a_change = pytest.mark.each_change(checks(CHANGED))


PART = 'config["parts"][ray.train.get_context().get_world_rank()]'
SPLIT = "rows.streaming_split(workers, equal=False)"
SUM = "    torch.distributed.all_reduce(counts)\n"
OF_RANKS = f"    counts = torch.stack([counts[0] / counts[1].clamp(min=1), torch.zeros(10)])\n{SUM}"
OWN_ON_RANK_1 = (
    f"    own = counts.clone()\n{SUM}    counts = own if torch.distributed.get_rank() else counts\n"
)
MEAN = "(totals[0] / totals[1])"


ON_THE_CLUSTER = {
    "06b-1": [
        ({SUM: ""}, "the rows of rank 0 alone"),
        ({SUM: OWN_ON_RANK_1}, "on rank 1: these are the rows of rank 1 alone"),
        ({SUM: OF_RANKS, ".tolist()": ".div(2).tolist()"}, "the mean of the ranks' ratios"),
        ({SUM: OF_RANKS}, "the sum of the ranks' ratios"),
        ({".tolist()": "[:9].tolist()"}, "has the shape (9,)"),
        ({"return ": "return None if torch.distributed.get_rank() else "}, "returns None on rank 1"),
        ({".clamp(min=1)": ""}, "a digit without rows is nan"),
    ],
    "06b-5": [
        ({"equal=False": "equal=True"}, "one row is missing"),
        ({"return trainer": "trainer"}, "returns None"),
        ({"return_value": 'return_value["val_loss"]'}, '{"val_loss": …, "rows": …} is expected'),
        ({"split(workers": "split(1", "num_workers=workers": "num_workers=1"}, "was loaded in 1 process,"),
        ({MEAN: "totals[0]"}, "the sum of the losses"),
        ({MEAN: "(totals[0] / totals[1] / 2)"}, "that is half of it"),
        ({".eval()": ""}, "one process finds"),
        ({"        torch.distributed.all_reduce(totals)\n": ""}, "the count of one rank"),
        ({f'"parts": {SPLIT}': '"rows": rows', PART: 'config["rows"]'}, "each worker counts all rows"),
        (
            {
                f'{{"parts": {SPLIT}}},': '{}, datasets={"rows": rows},',
                PART: 'ray.train.get_dataset_shard("rows")',
            },
            "one row is missing",
        ),
    ],
}


test_a_run_that_a_check_starts = pytest.mark.usefixtures("lab")(checks(ON_THE_CLUSTER))
