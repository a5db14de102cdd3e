"""One kernel that trains again and again: what a fit takes comes back."""

import pytest

from benchmarks import longlife
from labs import until


@pytest.mark.timeout(400)  # half a minute of it on two quiet cores
def test_what_a_fit_takes_comes_back(tmp_path_factory):
    home, work = tmp_path_factory.mktemp("lk"), ["sweep", "store", "store", *["fit"] * 6]

    def grown(last):
        names = [f"{who}, {what}" for who in ("kernel", "forkserver") for what in ("descriptors", "threads")]
        return {name for name in names if last[name] - first[name] >= 5}  # one for each of the other fits

    with longlife.Kernel(home) as kernel:
        lived = longlife.live(kernel, work)
        samples = [next(lived) for _ in work]
        first = samples[3]  # after the first fit, which imports and connects
        until(lambda: grown(kernel.look()) == set())  # a worker that has yet to end is four descriptors
        assert list(lived) == []
    for name in ("kernel, panels", "kernel, widgets", "home/processes, files", "home/objects, files"):
        assert samples[-1][name] <= first[name], name
