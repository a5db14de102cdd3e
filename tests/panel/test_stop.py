"""The Stop button in a real kernel: a click is handled while the cell's thread is in the training."""

import pytest

from kernels import kernel

TRAINING = """
import time
from labkit.panel import Panel
from labkit.worker.hooks import current

with Panel("endless"):
    while True:
        current().step()
        time.sleep(0.02)
"""


@pytest.fixture
def client(tmp_path):
    with kernel(LABKIT_HOME=str(tmp_path), LABKIT_PANEL="widgets") as lab:
        yield lab.client


def messages(client, cell):
    """What the kernel publishes until the cell is done."""
    while True:
        message = client.get_iopub_msg(timeout=200)
        yield message["msg_type"], message["content"]
        of_cell = message["parent_header"].get("msg_id") == cell
        if of_cell and message["content"].get("execution_state") == "idle":
            return


def click(client, button):
    """As JupyterLab does: in a subshell of the kernel."""
    client.control_channel.send(client.session.msg("create_subshell_request", {}))
    subshell = client.get_control_msg(timeout=200)["content"]["subshell_id"]
    event = {"method": "custom", "content": {"event": "click"}}
    message = client.session.msg("comm_msg", {"comm_id": button, "data": event})
    message["header"]["subshell_id"] = subshell
    client.shell_channel.send(message)


def test_a_click_on_stop_ends_the_cell(client):
    cell = client.execute(TRAINING)
    button, shown, tracebacks = None, None, []
    for kind, content in messages(client, cell):
        state = content.get("data", {}).get("state", {}) if kind.startswith("comm_") else {}
        if state.get("description") == "Stop":
            button = content["comm_id"]
        elif button and "● training" in str(state.get("value")):
            click(client, button)
            button = None
        if kind == "update_display_data":
            shown = content["data"]
        tracebacks += content["traceback"] if kind == "error" else []
    assert len(tracebacks) == 1 and tracebacks[0].startswith("endless: stopped by you after")
    assert "stopped by you" in shown["text/html"]
    assert shown["text/plain"].startswith("endless: stopped after")
