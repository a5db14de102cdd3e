"""A cluster that scales by itself: what is refused. Lesson 09 and a recipe run one."""

import pytest

from course import autoscaling
from labkit.errors import BadInput


def test_the_head_needs_a_node_type_of_its_own():
    with pytest.raises(BadInput) as error:
        autoscaling.start({"worker": {"resources": {"CPU": 2}, "max_workers": 1}}, idle_timeout_minutes=1)
    fix = error.value.fix.removeprefix("add ")
    assert "'ray.head.default'" in error.value.fact and "ray.head.default" in eval(fix)
