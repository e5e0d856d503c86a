"""A process that answers the scrapes of many replicas, each at a loopback address of its own.

`python -m dashboards.simulated_fleet.pages FIRST COUNT DEVICE REQUESTS_PER_SECOND` prints its port, then
serves until it is ended. Its replicas show one page, which requests move as they would one replica:
Prometheus stores each apart all the same.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Address
from random import Random

from dashboards.simulated_fleet.replica import Replica

HEAD = "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"


def address(number: int) -> str:
    """Where replica `number` (from 0) answers: 127.0.0.1 is the first. Linux has all of 127.0.0.0/8."""
    return str(IPv4Address("127.0.0.1") + number)


async def serve(first: int, count: int, device: str, requests_per_second: float) -> None:
    """Print the port, and answer on it at `count` addresses until cancelled."""
    replica = Replica(device, seed=first)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Prometheus closes a connection between two scrapes as it likes.
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body, kind = replica.page(accepted(head))
                writer.write(HEAD.format(kind=kind, length=len(body)).encode() + body)
                await writer.drain()
        writer.close()

    port = 0
    servers = []
    for number in range(first, first + count):
        server = await asyncio.start_server(answer, address(number), port)
        port = server.sockets[0].getsockname()[1]
        servers.append(server)
    print(port, flush=True)
    random = Random(first)
    while True:
        await asyncio.sleep(random.expovariate(requests_per_second))
        replica.serve()


def accepted(head: bytes) -> str:
    """The Accept header of a request's head; '' without one."""
    for line in head.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "accept":
            return value.strip()
    return ""


def main(arguments: Sequence[str]) -> None:
    """Command line."""
    first, count, device, rate = arguments
    asyncio.run(serve(int(first), int(count), device, float(rate)))


if __name__ == "__main__":
    main(sys.argv[1:])
