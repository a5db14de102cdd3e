"""Settings: what the environment may say, and where the lab lives."""

import os
from pathlib import Path

import pytest

import labs
from labkit import machine
from labkit.errors import LabError
from labkit.settings import VARIABLES, Settings, default_home

ROOT = Path(__file__).resolve().parent.parent


def test_every_variable_is_read_and_blank_ones_are_defaults(tmp_path):
    examples = {
        "small": ("1", True),
        "dataset": (" MNIST ", "mnist"),
        "home": (str(tmp_path), tmp_path),
        "num_workers": ("3", 3),
        "use_gpu": ("1", True),
        "preload": ("No", False),
        "panel": ("Text", "text"),
        "hang_after": ("5", 5),
        "compare_weights": ("off", False),
        "check_strict": ("PATIENT", 10),
        "ray_address": ("10.0.0.1:6379", "10.0.0.1:6379"),
        "s3_endpoint": ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
        "s3_access_key": ("key", "key"),
        "s3_secret_key": ("secret", "secret"),
        "s3_bucket": ("ours", "ours"),
    }
    settings = Settings.from_env({VARIABLES[name]: text for name, (text, _) in examples.items()})
    assert settings == Settings(**{name: value for name, (_, value) in examples.items()})
    assert examples.keys() == VARIABLES.keys() == Settings.__dataclass_fields__.keys()
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert [name for name in VARIABLES.values() if f"`{name}`" not in page] == []
    default = Settings.from_env({})
    assert (default.dataset, default.home, default.preload) == ("digits", default_home(), True)
    assert Settings.from_env(dict.fromkeys(VARIABLES.values(), "\t\n")) == default


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LABKIT_SMALL", "maybe"),
        ("LABKIT_DATASET", "imagenet"),
        ("LABKIT_WORKERS", "0"),
        ("LABKIT_WORKERS", "²"),
        ("LABKIT_WORKERS", "9" * 5000),
        ("LABKIT_PANEL", "3d"),
        ("LABKIT_S3_ENDPOINT", "s3://me:secret@bucket"),
        ("LABKIT_S3_ENDPOINT", "ftp://me:secret@school.example"),
    ],
)
def test_a_value_that_means_nothing_is_refused(name, value):
    with pytest.raises(LabError) as caught:
        Settings.from_env({name: value})
    assert name in caught.value.attempt and f"unset {name}" in caught.value.fix
    assert value[:100] in caught.value.fact or "not shown" in caught.value.fact
    assert len(str(caught.value)) < 500 and "secret" not in str(caught.value)
    assert name != "LABKIT_PANEL" or "auto, widgets, text, none" in caught.value.fact


def test_secrets_are_in_no_repr():
    secret = {"s3_endpoint": "https://me:secret@y"}
    assert "secret" not in repr(Settings(**secret, s3_access_key="secret2", s3_secret_key="secret3"))


def test_the_lab_lives_in_the_checkout_unless_it_cannot_be_written(monkeypatch, tmp_path):
    assert default_home() == ROOT / ".labkit"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert Settings.from_env({"LABKIT_HOME": "lab"}).home == tmp_path / "lab"
    assert Settings.from_env({"LABKIT_HOME": "~/lab"}).home == Path("/home/me/lab")
    assert not list(tmp_path.iterdir())  # nothing is made by reading
    assert list(Settings(home="new/home").make_home().iterdir()) == []
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert default_home() == Path("/home/me/.labkit")


def test_a_relative_path_is_one_folder_of_a_process_and_of_its_children(monkeypatch, tmp_path):
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKIT_HOME", "one-home")
    first = Settings.from_env()
    assert first.home == tmp_path / "one-home"
    monkeypatch.chdir(tmp_path / "data")
    assert Settings.from_env() == first
    ask = "from labkit import Settings; print(Settings.from_env().home)"
    assert labs.python(ask).stdout.split() == [str(first.home)]
    monkeypatch.setenv("LABKIT_HOME", "one-home")  # the first cell is run again after `%cd data`
    assert Settings.from_env().home == first.home == Settings(home="one-home").home


@pytest.mark.parametrize("place", ["file/below", "/proc/nope", "x" * 300])
def test_a_home_that_cannot_be_used(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(LabError) as caught:
        Settings(home=tmp_path / place).make_home()
    assert str(tmp_path / place)[:100] in caught.value.fact and "export LABKIT_HOME=" in caught.value.fix


@pytest.mark.parametrize(
    ("gpu", "local", "workers", "expected"),
    [
        ("", 0, "", (False, 2)),
        ("0", 4, "", (False, 2)),
        ("auto", 4, "", (True, 4)),
        ("1", 0, "", (True, 2)),  # a remote cluster has them
        ("auto", 4, "2", (True, 2)),
    ],
)
def test_gpus_and_workers(monkeypatch, gpu, local, workers, expected):
    monkeypatch.setattr(machine, "visible_gpus", lambda: local)
    settings = Settings.from_env({"LABKIT_GPU": gpu, "LABKIT_WORKERS": workers})
    assert (settings.use_gpu, settings.num_workers) == expected
