"""Faults on a real cluster: what is refused, a notice to a node, and what is frozen and runs on.

Ranks are killed, frozen and slowed down in lessons 03b, 08 and 09, whose claims say what that costs, and with
nodes, controllers and kernels in the campaign (test_campaign.py).
"""

from types import SimpleNamespace

import pytest

from course import faults
from labkit.errors import BadInput
from labkit.local.lab import Lab
from labkit.train import TrainPanel
from labkit.tune import SweepPanel
from labs import runs, until

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/cluster/", "course/faults.py"), pytest.mark.fault]


def test_a_notice_reaches_the_node(lab, home):
    added = lab.add_node(cpus=1)
    fault = faults.drain_node(added.name, deadline=10).now()
    assert fault.outcome == "made", fault
    # Idle and drained, so Ray ends it, but not its fork server.
    until(lambda: added.name not in [node.name for node in lab.nodes])
    left = Lab(home).running("cluster", added.name)
    assert any(runs(member.pid) for member in left)
    lab.remove_node(lab.add_node(cpus=1))
    assert not any(runs(member.pid) for member in left)


REFUSED = [
    (lambda: faults.drain_node("head"), "the cluster would end"),
    (lambda: faults.drain_node("node-77"), "started no such node"),
    (lambda: faults.kill_rank(0), "no run was named"),
]


@pytest.mark.parametrize("fault, why", REFUSED)
def test_what_cannot_be_made_is_refused_with_a_reason(lab, fault, why):
    made = fault().now()
    assert made.outcome == "refused" and why in made.did and "fix:" in made.did


@pytest.mark.each_change
def test_wrong_use_is_an_error(home):
    with pytest.raises(BadInput, match="between 0 and 1"):
        faults.slow_rank(0, share=2)
    with pytest.raises(BadInput, match="no epochs and no ranks"):
        faults.kill_rank(0).at(SweepPanel("sweep"))


def test_a_rank_on_another_machine_is_not_mistaken_for_a_local_process(lab):
    """It has the pid of one of the lab's own processes here."""
    panel = TrainPanel("faults")
    here = faults.running(panel)[0]
    worker = SimpleNamespace(pid=here.pid, node="elsewhere")
    stand_in = SimpleNamespace(settings=panel.settings, state=SimpleNamespace(workers={0: worker}))
    with pytest.raises(BadInput, match="no process of it on this machine; .* 0 on elsewhere"):
        faults._rank(stand_in, 0)
    worker.node = here.node
    assert faults._rank(stand_in, 0) == [here.process]
