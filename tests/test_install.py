"""`make setup` takes the build of torch that fits the machine; a server stands in for PyTorch's index."""

import pytest

import install
import web


@pytest.mark.parametrize(
    "torch, device, build",
    [("", False, "cpu"), ("", True, "cuda"), ("cpu", True, "cpu"), ("CUDA", False, "cuda")],
)
def test_which_build(monkeypatch, torch, device, build):
    monkeypatch.setattr(install, "has_nvidia_device", lambda: device)
    assert install.chosen_build({"TORCH": torch}, "linux") == build


def test_macos_needs_no_index_of_its_own_and_another_word_is_refused():
    assert install.chosen_build({}, "darwin") == "cuda"
    with pytest.raises(SystemExit, match="fix: TORCH=cpu or TORCH=cuda"):
        install.chosen_build({"TORCH": "rocm"})


def test_the_build_for_cpus_comes_from_its_index_while_that_answers():
    with web.serving(lambda request: (200, {}, b"")) as index:
        assert install.cpu_index({"TORCH": "cpu", "TORCH_INDEX": index}) == index
        assert install.cpu_index({"TORCH": "cuda", "TORCH_INDEX": index}) is None
    assert install.cpu_index({"TORCH": "cpu", "TORCH_INDEX": index}) is None
    first, rest = install.commands(index)
    assert index in first and "--editable" in rest
    assert install.commands(None) == [rest]
