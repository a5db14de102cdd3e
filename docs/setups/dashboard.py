"""Forward connections to the dashboard of the lab's Ray cluster, whatever its port is at the moment.

python docs/setups/dashboard.py PORT        listens on 127.0.0.1:PORT
"""

import asyncio
import sys
from urllib.parse import urlsplit

from labkit.local.family import CLUSTER
from labkit.local.lab import Lab
from labkit.settings import Settings

_NONE = b"No cluster is running. Run cluster.start() in a notebook, then reload this page.\n"


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection: to the dashboard if there is one, or an answer that says what to do."""
    try:
        facts = Lab(Settings.from_env().home).noted(CLUSTER, {"dashboard": str})
        dashboard = urlsplit(facts["dashboard"])
        there = await asyncio.open_connection(dashboard.hostname, dashboard.port)
    except (KeyError, OSError):
        head = f"HTTP/1.1 503 No cluster\r\nContent-Type: text/plain\r\nContent-Length: {len(_NONE)}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + _NONE)
        await writer.drain()
        writer.close()
        return
    await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until one of the two hangs up."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def main(port: int) -> None:
    server = await asyncio.start_server(forward, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
