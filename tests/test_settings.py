"""Settings: what the environment may say, and where the lab lives."""

import os
from pathlib import Path

import pytest

from labkit import settings as settings_module
from labkit.errors import SettingsError
from labkit.settings import Settings, default_home, home_fault

ROOT = Path(__file__).resolve().parent.parent


def test_without_variables_it_has_defaults():
    settings = Settings.from_env({})
    assert (settings.small, settings.dataset, settings.home) == (False, "digits", default_home())
    assert (settings.mirror, settings.check_strict, settings.ray_address) == (None, False, None)


def test_every_variable_is_read(tmp_path):
    settings = Settings.from_env(
        {
            "LABKIT_SMALL": "1",
            "LABKIT_DATASET": "mnist",
            "LABKIT_HOME": str(tmp_path),
            "LABKIT_WORKERS": "3",
            "LABKIT_GPU": "1",
            "LABKIT_PANEL": "text",
            "LABKIT_MIRROR": "https://school.example/data",
            "LABKIT_CHECK": "strict",
            "RAY_ADDRESS": "10.0.0.1:6379",
        }
    )
    assert settings == Settings(
        small=True,
        dataset="mnist",
        home=tmp_path,
        num_workers=3,
        use_gpu=True,
        panel="text",
        mirror="https://school.example/data",
        check_strict=True,
        ray_address="10.0.0.1:6379",
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LABKIT_SMALL", "maybe"),
        ("LABKIT_DATASET", "imagenet"),
        ("LABKIT_WORKERS", "0"),
        ("LABKIT_WORKERS", "two"),
        ("LABKIT_WORKERS", "-1"),
        ("LABKIT_WORKERS", "1.5"),
        ("LABKIT_WORKERS", "²"),
        ("LABKIT_WORKERS", "9" * 5000),
        ("LABKIT_HOME", "~nobody-of-this-name/lab"),
        ("LABKIT_GPU", "2"),
        ("LABKIT_PANEL", "3d"),
        ("LABKIT_CHECK", "lax"),
        ("LABKIT_S3_ENDPOINT", "127.0.0.1:9000"),
        ("LABKIT_S3_ENDPOINT", "s3://bucket"),
        ("LABKIT_MIRROR", "ftp://school.example"),
        ("LABKIT_MIRROR", "https://"),
    ],
)
def test_a_value_that_means_nothing_is_refused(name, value):
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({name: value})
    assert name in caught.value.attempt
    assert repr(value)[:100] in caught.value.fact
    assert len(str(caught.value)) < 500


def test_secrets_are_in_no_repr():
    settings = Settings(mirror="https://me:secret1@x", s3_access_key="secret2", s3_secret_key="secret3")
    assert "secret" not in repr(settings)


@pytest.mark.parametrize("name", ["LABKIT_MIRROR", "LABKIT_S3_ENDPOINT"])
def test_a_refusal_shows_no_password(name):
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({name: "htp://me:secret@school.example"})
    assert "secret" not in str(caught.value)


def test_the_lab_lives_in_the_checkout_unless_it_cannot_be_written(monkeypatch):
    assert default_home() == ROOT / ".labkit"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert default_home() == Path.home() / ".labkit"


def test_a_user_without_a_home_folder_is_told_to_choose_one(monkeypatch):
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(Path, "home", none)
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({})
    assert "export LABKIT_HOME=" in caught.value.fix


def test_the_home_is_made_when_it_is_needed(tmp_path):
    settings = Settings(home=tmp_path / "new" / "home")
    assert settings.make_home() == settings.make_home() == tmp_path / "new" / "home"
    assert list(settings.home.iterdir()) == []


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nope", "x" * 300])
def test_a_home_that_cannot_be_used(tmp_path, place):
    (tmp_path / "file").touch()
    home = tmp_path / place
    with pytest.raises(SettingsError) as caught:
        Settings(home=home).make_home()
    assert str(home)[:100] in caught.value.fact
    assert "export LABKIT_HOME=" in caught.value.fix
    assert home_fault(home) in str(caught.value)


@pytest.mark.parametrize("value", ["", " ", "\t\n"])
def test_a_blank_value_is_none(value):
    names = (
        "SMALL",
        "DATASET",
        "HOME",
        "WORKERS",
        "GPU",
        "PANEL",
        "MIRROR",
        "CHECK",
        "S3_ENDPOINT",
        "S3_SECRET_KEY",
    )
    blank = {f"LABKIT_{name}": value for name in names} | {"RAY_ADDRESS": value}
    assert Settings.from_env(blank) == Settings.from_env({})


@pytest.mark.parametrize(
    ("value", "small"),
    [("1", True), ("TRUE", True), (" yes ", True), ("on", True), ("0", False), ("No", False), ("off", False)],
)
def test_flags_may_be_written_as_one_likes(value, small):
    assert Settings.from_env({"LABKIT_SMALL": value}).small is small


def test_names_may_be_written_as_one_likes():
    settings = Settings.from_env(
        {"LABKIT_DATASET": " MNIST ", "LABKIT_PANEL": "Text", "LABKIT_CHECK": "STRICT"}
    )
    assert (settings.dataset, settings.panel, settings.check_strict) == ("mnist", "text", True)


def test_the_home_is_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert Settings.from_env({"LABKIT_HOME": "lab"}).home == tmp_path / "lab"
    assert Settings.from_env({"LABKIT_HOME": "~/lab"}).home == Path("/home/me/lab")
    assert not list(tmp_path.iterdir())  # nothing is made by reading


@pytest.mark.parametrize(
    ("gpu", "local", "workers", "expected"),
    [
        ("", 0, "", (False, 2)),
        ("0", 4, "", (False, 2)),
        ("auto", 4, "", (True, 4)),
        ("auto", 1, "", (True, 1)),
        ("1", 0, "", (True, 1)),  # a remote cluster has them
        ("1", 4, "8", (True, 8)),
        ("auto", 4, "2", (True, 2)),
        ("", 0, "5", (False, 5)),
    ],
)
def test_gpus_and_workers(monkeypatch, gpu, local, workers, expected):
    monkeypatch.setattr(settings_module, "_local_gpus", lambda: local)
    settings = Settings.from_env({"LABKIT_GPU": gpu, "LABKIT_WORKERS": workers})
    assert (settings.use_gpu, settings.num_workers) == expected


def test_a_refusal_names_the_variable_and_what_it_takes():
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({"LABKIT_PANEL": "3d"})
    assert "auto, widgets, text, none" in caught.value.fact
    assert "unset LABKIT_PANEL" in caught.value.fix


def test_settings_do_not_change():
    with pytest.raises(AttributeError):
        Settings().small = True
