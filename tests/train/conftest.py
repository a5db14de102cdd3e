"""A panel of Ray Train that draws nothing."""

import pytest

from labkit.panel.reporters import NullReporter
from labkit.train import TrainPanel


@pytest.fixture
def panel(home):
    return TrainPanel("run", reporter=NullReporter())
