"""`make setup` takes the build of torch that fits the machine.

PyTorch's own index is not reached by this test; a server with its layout and a stand-in wheel take its place.
"""

import hashlib
import subprocess
import sys
import zipfile
from urllib.parse import quote

import pytest

import install
import web

pytestmark = pytest.mark.slow


PIN = next(
    line for line in (install.ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")
)


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


def test_without_an_answer_pip_installs_what_it_finds():
    assert not install.answers("http://127.0.0.1:9", 1)
    assert install.cpu_index({"TORCH": "cpu", "TORCH_INDEX": "http://127.0.0.1:9"}) is None
    assert len(install.commands(None)) == 1


@pytest.fixture
def index(tmp_path):
    """The address of an index with the layout of PyTorch's, which has a build for CPUs of the pin."""
    version = PIN.partition("==")[2]
    name, info = f"torch-{version}+cpu-py3-none-any.whl", f"torch-{version}+cpu.dist-info"
    with zipfile.ZipFile(tmp_path / name, "w") as wheel:
        wheel.writestr("torch/__init__.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}+cpu\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    content = (tmp_path / name).read_bytes()
    link = f"{quote(name)}#sha256={hashlib.sha256(content).hexdigest()}"
    pages = {"/": f'<a href="{link}">{name}</a>'.encode(), f"/{quote(name)}": content}

    def answer(request):
        page = pages.get(request.path.removeprefix("/whl/cpu/torch"))
        return 404 if page is None else 200, {"Content-Type": "text/html"}, page or b""

    with web.serving(answer) as url:
        yield f"{url}/whl/cpu"


def test_the_build_for_cpus_comes_from_the_index_that_has_it(index, tmp_path):
    assert install.answers(index)
    assert install.cpu_index({"TORCH": "cpu", "TORCH_INDEX": index}) == index
    assert install.cpu_index({"TORCH": "cuda", "TORCH_INDEX": index}) is None
    first, rest = install.commands(index)
    assert PIN in first and "--editable" in rest
    command = [sys.executable, "-m", "pip", *first, "--target", str(tmp_path / "there"), "--isolated"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (kept,) = (tmp_path / "there").glob("torch-*.dist-info")
    assert kept.name.removesuffix(".dist-info").endswith("+cpu")
