"""Settings: what the environment may say, and where the lab lives."""

import os
from pathlib import Path

import pytest

from labkit.errors import SettingsError
from labkit.settings import Settings, default_home

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
        ("LABKIT_GPU", "2"),
        ("LABKIT_PANEL", "3d"),
        ("LABKIT_CHECK", "lax"),
    ],
)
def test_a_value_that_means_nothing_is_refused(name, value):
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({name: value})
    assert name in caught.value.attempt
    assert repr(value) in caught.value.fact


def test_secrets_are_in_no_repr():
    settings = Settings(mirror="https://me:secret1@x", s3_access_key="secret2", s3_secret_key="secret3")
    assert "secret" not in repr(settings)


def test_the_lab_lives_in_the_checkout_unless_it_cannot_be_written(monkeypatch):
    assert default_home() == ROOT / ".labkit"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert default_home() == Path.home() / ".labkit"
