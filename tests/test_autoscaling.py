"""A cluster that scales by itself: what is refused, and a second start. Lesson 09 and a recipe use one."""

import pytest

from course import autoscaling
from labkit.errors import BadInput, LabError
from labkit.local import cluster
from labkit.local.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.covers("course/autoscaling.py", "labkit/cluster/")]


@pytest.mark.each_change
def test_the_head_needs_a_node_type_of_its_own():
    with pytest.raises(BadInput) as error:
        autoscaling.start({"worker": {"resources": {"CPU": 2}, "max_workers": 1}}, idle_timeout_minutes=1)
    fix = error.value.fix.removeprefix("add ")
    assert "'ray.head.default'" in error.value.fact and "ray.head.default" in eval(fix)


def test_the_cell_that_starts_it_can_run_twice(home):
    types = {"ray.head.default": {"resources": {"CPU": 1}, "max_workers": 0}}
    first = autoscaling.start(types, idle_timeout_minutes=1)
    try:
        second = autoscaling.start(types, idle_timeout_minutes=1)
        assert second.is_running and not first.is_running and second.address != first.address
        assert list(Lab(home).make_folder().glob("session_2*"))  # where `labkit clean` looks
        second.stop()
        with cluster.start(cpus_per_node=1) as lab:
            with pytest.raises(LabError, match="is connected to"):
                autoscaling.start(types, idle_timeout_minutes=1)
            assert lab.is_running
    finally:
        autoscaling.stop()
