"""Which tests run when.

- ``-m quick``, the minute between two edits: no cluster, no browser, no training.
- `make test`, for each change: all but the tests marked ``deep``.
- `make test-all`, for each night: everything. When it is green on a clean checkout, it writes the commit into
  ``.ci/tested``.
- `.ci/run`, for each submission: `make test`, then the deep tests that `TOUCHED` names for the files that
  differ from the commit in ``.ci/tested``.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTED = ROOT / ".ci" / "tested"
LEFT = "left for make test-all: the hour of .ci/run is over"

# In the names of tests that need TensorFlow, which has no wheel for Python 3.14 yet.
TENSORFLOW = ("keras", "tensorflow", "lesson_04") if sys.version_info >= (3, 14) else ()

# The modules that take more than four seconds. All others are quick, but for browsers and faults.
SLOW = {
    *(
        "accessibility",
        "board_page",
        "browser",
        "slides",
        "sweep_browser",
        "tour",
        "validation_browser",
        "website",
    ),
    *("cluster", "connection", "forkserver", "kernel", "kills", "other_clusters", "preload"),
    *("data_progress", "catalog", "data_page"),
    *(
        "comparison",
        "lesson_01",
        "lesson_02",
        "lesson_03",
        "lesson_03b",
        "lesson_03c",
        "lesson_06",
        "lesson_06b",
        "lesson_08",
    ),
    *("lesson_09", "lesson_10"),
    *("running_cluster", "checks_elsewhere", "campaign", "fault_injection"),
    "keras_models",
    *("torch_models", "panel", "mailbox", "spark", "spark_panel"),
    *(
        "object_server",
        "storage",
        "storage_ray",
        "store_kernel",
    ),
    *(
        "own_experiment",
        "cli",
        "diagnosis",
        "supervisor",
        "additions",
        "build",
        "notebooks",
        "plain",
        "install",
        "registry",
        "kept",
    ),
    *("bundle", "damaged_inputs", "grading", "light_install", "ray_examples"),
    *("class_bucket", "sharing"),
    *(
        "alone",
        "dead_workers",
        "endings",
        "epochs",
        "first_version",
        "hang",
        "hooks",
        "ray_reporting",
        "rows",
        "streams",
        "tensorflow",
        "validation",
    ),
    *("sweep_panel", "sweep_restore"),
    *("schedule", "lesson_12", "lesson_12b", "mlflow", "works_with"),
}

# {module: what of it `make test` runs all the same}. Everything else in these modules is deep.
DEEP = {
    # one kill of each kind (kernel, node; the store's is in test_object_server, a rank's in lesson 08) stays
    "kernel": ("test_a_kernel_that_was_killed_alone",),
    "cluster": (
        "test_it_has_the_nodes",
        "test_a_second_start_returns_the_first",
        "test_a_node_is_added_used_and_removed",
        "test_a_node_that_dies",
        "test_a_training_that_has_no_room",
        "test_a_wrong_token",
        "test_after_stop_nothing_is_left",
    ),
    "preload": (),
    "kills": (),
    "connection": ("test_a_cluster_of_a_plain_ray_start",),
    "supervisor": (
        "test_what_is_started",
        "test_stop_ends_all_of_a_group",
        "test_a_killed_user_leaves_nothing",
        "test_a_killed_supervisor_is_replaced",
    ),
    "fault_injection": ("test_wrong_use",),
    "campaign": (),
    "hang": (),
    "epochs": (),
    "alone": (),
    "streams": (),
    # of each engine one real run with its panel, and one Stop
    "ray_reporting": (
        "test_a_run_on_two_nodes",
        "test_what_a_worker_raises",
        "test_an_interrupt_ends_the_run",
        "test_what_cannot_work_is_refused",
        "test_without_workers",
        "test_workers_that_wait",
        "test_the_length_of_a_run",
        "test_a_shard_of_ray_data",
        "test_what_is_wrong_with_a_metric",
        "test_a_module_that_workers_lack",
        "test_the_plain_script",
    ),
    "validation": (),
    "endings": ("test_what_no_node", "test_a_validation_that_no_node", "test_a_relative"),
    "dead_workers": (),
    "tensorflow": (),
    "sweep_panel": ("test_a_grid_of_four_twice", "test_an_interrupt_ends_the_sweep"),
    "sweep_restore": (),
    "spark": (),
    "spark_panel": ("test_what_is_no_distributor",),
    "comparison": (),
    "storage_ray": (),
    "store_kernel": (),
    # what the engine adds to a check; the texts of checks are tested without one
    "lesson_03": (),
    "lesson_03b": (),
    "lesson_03c": ("test_other_right", "test_what_is_said", "test_batches"),
    "lesson_06": (
        "test_what_a_check_says",
        "test_not_after",
        "test_what_a_rank",
        "test_a_checkpoint_with",
        "test_rows_are",
        "test_weights_that",
    ),
    "lesson_06b": ("test_what_a_check_says",),
    "lesson_08": (),
    "lesson_09": ("test_what_a_check_says",),
    "lesson_10": (),
    "running_cluster": (),
    "checks_elsewhere": (),
    # what is shown and handed out
    "accessibility": (),
    "board_page": (),
    "class_bucket": (),
    "slides": (),
    "sweep_browser": (),
    "tour": (),
    "validation_browser": (),
    "website": (),
    "bundle": (),
    "grading": (),
    "own_experiment": (),
    "keras_models": ("test_steps_rows", "test_a_model_of_one_worker"),
    "damaged_inputs": (),
    "additions": (),
    "benchmarks": (),
    "works_with": (),  # an environment of its own, and more than 30 rows
    "mlflow": (),
    "plain": (),
    # `test_it_is_small` needs no environment of its own
    "light_install": ("test_it_is_small",),
    "ray_examples": (),
    "other_clusters": (),
}

# Of the deep tests, those that only `make test-all` runs: five clusters in namespaces and Ray's own examples
# take half an hour.
NIGHT = ("other_clusters", "ray_examples")

# What a change below these paths can break, riskiest first: modules of deep tests, "*" for all of them.
_KILLS = ("kernel", "kills", "cluster", "connection", "supervisor", "fault_injection")
_PANELS = (
    "ray_reporting",
    "endings",
    "validation",
    "sweep_panel",
    "spark_panel",
    "tensorflow",
    "sweep_browser",
    "tour",
    "validation_browser",
)
_CHECKS = (
    *("lesson_03", "lesson_03b", "lesson_03c", "lesson_06", "lesson_06b"),
    *("lesson_08", "lesson_09", "lesson_10"),
    "checks_elsewhere",
)
TOUCHED = {
    "labkit/settings.py": ("*",),
    "labkit/local/": ("*",),
    "pyproject.toml": ("*",),
    "constraints.txt": ("*",),
    "labkit/local/forkserver/": ("preload", "ray_reporting", "endings", "sweep_panel", "validation"),
    "labkit/cluster/": (*_KILLS, "preload", "endings", "dead_workers", "other_clusters"),
    "labkit/check.py": ("other_clusters",),
    "labkit/panel/": (*_PANELS, "light_install", "ray_examples"),
    "labkit/worker/": (*_PANELS, "epochs", "alone", "light_install", "ray_examples"),
    "labkit/display/": ("sweep_browser", "validation_browser", "accessibility"),
    "labkit/train/": (
        "ray_reporting",
        "endings",
        "validation",
        "hang",
        "streams",
        "tensorflow",
        "other_clusters",
    ),
    "labkit/data.py": ("dead_workers",),
    "labkit/tune/": ("sweep_panel", "sweep_restore", "sweep_browser"),
    "labkit/spark/": ("spark", "spark_panel"),
    "labkit/storage/": ("storage_ray", "store_kernel", "class_bucket"),
    "course/faults.py": ("fault_injection", "campaign"),
    "labkit/interrupts.py": ("kernel", "benchmarks"),
    "labkit/runs/": ("damaged_inputs", "mlflow"),
    "docs/runs.md": ("mlflow",),
    "course/models/": ("keras_models", "tensorflow"),
    "course/exercises/": (*_CHECKS, "running_cluster"),
    "lessons/checks/": _CHECKS,
    "course/classroom/": ("class_bucket", "board_page", "grading"),
    "notebooks/own_experiment/": ("own_experiment",),
    "course/datasets/": ("plain", "storage_ray"),
    "datasets/": ("plain", "bundle"),
    "benchmarks/_engines/": ("comparison",),
    "benchmarks/_works_with/": ("works_with",),
    "benchmarks/": ("benchmarks", "campaign"),
    "tools/": ("bundle", "additions", "slides"),
    "docs/api.md": ("additions",),
    "tools/website.py": ("website",),
}


def is_deep(module: str, test: str) -> bool:
    """Whether `make test` leaves out `test` (its function's name) of tests/…/test_`module`.py."""
    return module in DEEP and not test.startswith(DEEP[module] or ("\0",))


def modules_for(changed: Iterable[str]) -> list[str]:
    """The modules whose deep tests a change of these files asks for, in the order of `TOUCHED`."""
    changed = list(changed)
    wanted: dict[str, None] = {}
    for prefix, modules in TOUCHED.items():
        if any(path.startswith(prefix) for path in changed):
            wanted |= dict.fromkeys(sorted(DEEP) if "*" in modules else modules)
    own = {Path(path).stem.removeprefix("test_") for path in changed if path.startswith("tests/")}
    return list(wanted | dict.fromkeys(sorted(own & DEEP.keys())))


def touched() -> list[str]:
    """pytest's options for the deep tests of what differs from the last commit that was tested completely.

    Without such a commit, or if it is no ancestor of HEAD, these are all deep tests but those of `NIGHT`.
    """
    not_at_night = " and ".join(f"not test_{module}.py" for module in NIGHT)
    tested = TESTED.read_text().strip() if TESTED.exists() else "none"
    if _git("merge-base", "--is-ancestor", tested, "HEAD").returncode:
        return ["-m", "deep", "-k", not_at_night]
    changed = _git("diff", "--name-only", tested, "HEAD").stdout.splitlines()
    files = [f"test_{module}.py" for module in modules_for(changed) if module not in NIGHT]
    lessons = {Path(path).stem for path in changed if path.startswith(("lessons/", "notebooks/plain/"))}
    # The names of lessons are in those of other tests, too.
    wanted = " or ".join([*files, *sorted(lessons)])
    return ["-m", "deep", "-k", f"({wanted}) and {not_at_night}"] if wanted else []


def note_tested() -> str:
    """Write down that HEAD was tested completely, unless the checkout differs from it."""
    if _git("status", "--porcelain").stdout.strip():
        return f"{TESTED.relative_to(ROOT)} not written: the checkout has changes that no commit has"
    TESTED.write_text(_git("rev-parse", "HEAD").stdout)
    return f"wrote {TESTED.relative_to(ROOT)}: commit it"


def _git(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
