"""A widget's message that is sent to a subshell waits for the end of the running cell. Twenty seconds."""

import time

import ipykernel
from jupyter_client import KernelManager

SETUP = """
import time
from comm import create_comm
clicks = []
comm = create_comm("clicks")
comm.on_msg(lambda message: clicks.append(time.time()))
comm.comm_id
"""
CELL = "begin = time.time(); comm.send({'step': 0}); time.sleep(6); print(begin, clicks)"


def printed(client, code: str) -> str:
    """What a cell shows: its printed text or its value."""
    shown = []

    def note(message) -> None:
        content = message["content"]
        shown.append(content.get("text") or content.get("data", {}).get("text/plain", ""))

    client.execute_interactive(code, output_hook=note, timeout=60)
    return "".join(shown)


def waited(client) -> float:
    """Seconds from a click, two seconds after the start of a cell that takes six, until it is handled."""
    comm_id = printed(client, SETUP).strip("'")
    request = client.session.msg("create_subshell_request")
    client.control_channel.send(request)
    subshell = client.get_control_msg(timeout=10)["content"]["subshell_id"]

    client.execute(CELL)  # runs in the main shell for six seconds
    time.sleep(2)
    click = client.session.msg("comm_msg", {"comm_id": comm_id, "data": {}})
    click["header"]["subshell_id"] = subshell
    sent = time.time()
    client.shell_channel.send(click)
    time.sleep(5)
    return float(printed(client, "print(clicks[0])")) - sent


def main(client) -> None:
    print("ipykernel", ipykernel.__version__)
    print(f"a click in a cell that has 4 s left: handled after {waited(client):.1f} s")
    printed(client, "type(comm)._reply_subshell_for = lambda self, data, chosen: chosen")
    print(f"the same without ipykernel's new routing: handled after {waited(client):.1f} s")


if __name__ == "__main__":
    manager = KernelManager()
    manager.start_kernel()
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        main(client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
