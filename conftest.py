"""What all tests share: their own home folder, small mode, the order they run in, the browser."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests import tiers

pytest_plugins = ["labs"]  # of tests/support: the fixtures `home` and `lab`

ROOT = Path(__file__).resolve().parent

# Tests never touch the lab that a person has open, nor what that person solved.
os.environ.setdefault("LABKIT_HOME", str(ROOT / ".labkit" / "test"))
os.environ.setdefault("LABKIT_SMALL", "1")

# A shell that starts `make test` in the background lets it and all of its children ignore Ctrl-C: what the
# tests interrupt would go on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Cheap and telling first: what fails in a unit test would fail in a notebook too, ten minutes later.
_STAGES = ("unit", "fault", "notebook", "browser")
_SECONDS = {"notebook": 1800, "browser": 1200}  # on a machine on which other programs run, too


def _chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


def _in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true")


def _stage(item: pytest.Item) -> str:
    return next((stage for stage in _STAGES if item.get_closest_marker(stage)), "unit")


def _quick(path: Path) -> bool:
    return path.suffix == ".py" and "slow" not in tiers.module_marks(path)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # What `tools/build.py` kept of a learner's work is nobody's test.
    if ".mine-" in collection_path.name:
        return True
    if any(word in collection_path.name for word in tiers.TENSORFLOW) and collection_path.suffix == ".py":
        return True  # it imports TensorFlow
    # Importing the slow modules takes as long as running the quick ones.
    left_out = config.option.markexpr == "quick" and collection_path.is_file()
    return True if left_out and not _quick(collection_path) else None


def pytest_itemcollected(item: pytest.Item) -> None:
    if _quick(item.path) and _stage(item) == "unit":
        item.add_marker("quick")
    if item.get_closest_marker("covers") and not item.get_closest_marker("each_change"):
        item.add_marker("deep")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    # Some bytes hold a time, and a test must have one name in both lanes; all of them are hard to read.
    return argname if isinstance(val, bytes) else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the modules in a random order")
    parser.addoption("--golden", action="store_true", help="write tests/golden instead of comparing it")


@pytest.hookimpl(trylast=True)  # after -m and -k have chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if hasattr(item, "nbmake"):
            item.add_marker("notebook")
        if any(word in item.nodeid for word in tiers.TENSORFLOW):
            item.add_marker(pytest.mark.skip(reason="TensorFlow has no wheel for this Python"))
        stage = _stage(item)
        if stage in _SECONDS and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_SECONDS[stage]))
    items.sort(key=lambda item: _STAGES.index(_stage(item)))
    if (seed := config.getoption("shuffle")) is not None:
        modules = sorted({item.path for item in items})
        random.Random(seed).shuffle(modules)
        modules.sort(key=lambda module: module.stem == "test_website")  # it shows notebooks that were run
        items.sort(key=lambda item: modules.index(item.path))
    browser = [item for item in items if _stage(item) == "browser"]
    if _in_ci() and _chromium() is None and browser:
        items[:] = browser  # they fail now, and not after all the other tests


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """`.ci/run` has an hour. What it doesn't reach is left for `make test-all`, and listed as such."""
    if item.get_closest_marker("deep") and time.time() > float(os.environ.get("TESTS_UNTIL", "inf")):
        pytest.skip(tiers.LEFT)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """The tests of a module stay together, since they share its cluster; those of one lesson do, not all."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module, _, test = nodeid.partition("::")
            alone = module.endswith(("test_notebooks.py", "test_plain.py"))
            lesson = test.partition("[")[2] if alone else ""
            return f"{module} {lesson}"

    return Together(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """In CI a test that skips itself fails: a browser or a Java that is missing should be installed."""
    report = yield
    excused = (
        hasattr(report, "wasxfail") or item.get_closest_marker("gpu") or tiers.LEFT in str(report.longrepr)
    )
    if _in_ci() and report.skipped and not excused:
        report.outcome, report.longrepr = "failed", f"skipped in CI: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    """Solutions must be right; a lesson that nobody has solved must merely run to its end."""
    strict = hasattr(item, "nbmake") and item.path.parent.name == "solutions"
    with pytest.MonkeyPatch.context() as patch:
        if strict:
            patch.setenv("LABKIT_CHECK", "patient")
        return (yield)


@pytest.fixture(autouse=True)
def _an_interrupt_interrupts() -> None:
    """A fit() without a panel leaves Ray's handler behind in this process: for a controller that is gone."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium; where there is none, the test is skipped (in CI, it fails)."""
    return _chromium() or pytest.skip("no Chromium for the browser tests: apt-get install -y chromium")


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the checkout."""
    return ROOT
