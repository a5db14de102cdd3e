"""The floors of the package: a module imports only from floors below its own."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import labkit

# Lowest first. A new module gets a line here: put it as low as what it imports allows.
FLOORS = (
    {"errors", "files", "machine", "diagnosis", "waiting", "tracebacks", "answers", "pids", "style"}
    | {"forked_ids", "forked_worker", "forkserver_client"},
    {
        "settings",
        "solved",
        "channel",
        "processes",
        "idx",
        "downloads",
        "gallery",
        "rendering",
        "placement",
        "knock",
    }
    | {
        "forkserver",
        "events",
        "curve",
        "workers",
        "checkpoints",
        "spans",
        "s3_keys",
        "s3_faults",
        "store_card",
    }
    | {"pictures", "java", "spark_faults"},
    {"progress", "tracking", "messenger", "records", "images", "environment", "keeper", "s3_client"}
    | {"object_server", "preflight"},
    {"wording", "recording", "preload", "shards", "storage", "torch_models", "execution"}
    | {"keras_settings", "keras_models", "sweep_progress", "sweep_snapshot", "whole_files"},
    {"curve_svg", "gantt_svg", "rows", "figures", "datasets", "torch_states", "torch_training", "uploads"}
    | {"keras_states", "keras_reporting", "sweep_svg", "sweep_recording", "ray_start", "stopwatch"},
    {"drawing", "sweep_drawing", "sweep_figures", "spark_start"},
    {"reporters", "timeline", "inventory", "execution_drawing", "sweep_text"},
    {"panel", "cluster_handle", "captured", "reported", "sweep_names", "sweep_trials", "sweep_callback"}
    | {"spark"},
    {"beside", "cluster"},
    {"ray_reporting", "data_progress", "validation", "sweep_checks", "spark_reporting", "launches"},
    {"sweep_panel"},
    {"runs", "comparison"},
    {"exercises"},  # the checks of a lesson may use all that the lesson uses
    {"check"},
    {"__main__"},
)
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
PACKAGE = Path(labkit.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
HEAVY = {
    "ray",
    "torch",
    "tensorflow",
    "keras",
    "pyspark",
    "pandas",
    "ipywidgets",
    "matplotlib",
    "PIL",
    "pooch",
}


def imports(path: Path) -> Iterator[tuple[str, ...]]:
    """Dotted names of all that a module imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ["labkit"] if node.level else []
            base += (node.module or "").split(".") if node.module else []
            yield from ((*base, alias.name) for alias in node.names)


def engines(path: Path) -> set[str]:
    return {name[0] for name in imports(path)} & {"ray", "torch", "tensorflow", "keras", "pyspark"}


def topic(path: Path) -> str:
    """The name that has a floor: a module's, or that of the package it is in."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def modules() -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE).with_suffix(""))
    )


@modules()
def test_imports_from_lower_floors_only(path):
    own = topic(path)
    if own == "__init__":
        allowed = {"errors", "settings"}
    else:
        assert own in FLOOR, f"give {own} a floor in tests/test_layers.py"
        allowed = {name for name, floor in FLOOR.items() if floor < FLOOR[own]}
        allowed |= {own} if path.parent != PACKAGE else set()
    names = {name[1] for name in imports(path) if name[0] == "labkit" and len(name) > 1}
    used = {name for name in names if (PACKAGE / f"{name}.py").exists() or (PACKAGE / name).is_dir()}
    assert used <= allowed


@modules()
def test_engines_stay_apart(path):
    assert not {"torch", "tensorflow"} <= engines(path)
    assert not {"torch", "keras"} <= engines(path)
    if "ray" in engines(path):
        assert FLOOR[topic(path)] >= FLOOR["cluster_handle"]


@modules()
def test_all_names_what_is_public(path):
    tree = ast.parse(path.read_text())
    defined = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {leaf.id for t in targets for leaf in ast.walk(t) if isinstance(leaf, ast.Name)}
    public = {name for name in defined if not name.startswith("_")}
    (declared,) = (ast.literal_eval(node.value) for node in tree.body if _assigns(node, "__all__"))
    assert len(declared) == len(set(declared))
    # A module may hand on what belongs to its topic and is written in a lower one.
    handed_on = {name[-1] for name in imports(path) if name[0] == "labkit"}
    assert public <= set(declared) <= public | handed_on | {"__version__"}


def _assigns(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.Assign) and any(
        getattr(target, "id", None) == name for target in node.targets
    )


def test_import_labkit_is_light():
    """Each worker of each engine imports it, and so does `python -m labkit stop`."""
    code = "import sys, labkit; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())
