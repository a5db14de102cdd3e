"""Exercises that are solved here are recorded in a folder of the test, and a wrong answer does not raise."""

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.delenv("LABKIT_CHECK", raising=False)
    return tmp_path
