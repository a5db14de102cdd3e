"""One kernel that trains again and again: what a fit takes comes back."""

import pytest

from benchmarks import longlife


@pytest.mark.timeout(400)  # half a minute of it on two quiet cores
def test_what_a_fit_takes_comes_back(tmp_path_factory):
    home = tmp_path_factory.mktemp("lk")
    with longlife.Kernel(home) as kernel:
        samples = list(longlife.live(kernel, ["sweep", "store", "store", *["fit"] * 6]))
    first, last = samples[3], samples[-1]  # after the first fit, which imports and connects
    for who in ("kernel", "forkserver"):
        for what in ("descriptors", "threads"):
            # One left by each of the other fits would be five; a worker that still ends is four descriptors.
            assert last[f"{who}, {what}"] - first[f"{who}, {what}"] < 5, (who, what)
    for name in ("kernel, panels", "kernel, widgets", "home/processes, files", "home/objects, files"):
        assert last[name] <= first[name], name
