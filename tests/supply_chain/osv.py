"""A stand-in on loopback for a vulnerability service that speaks OSV's protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

Known = dict[tuple[str, str], list[dict[str, Any]]]
"""The service's own documents by name and version of the package."""


@dataclass
class Osv:
    """What it knows, and how it answers: with `status`, `text` instead of JSON, or never while `held`."""

    known: Known = field(default_factory=dict)
    status: int = 200
    text: str | None = None
    held: Event | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)


def vulnerability(
    package: str, number: str, fixed: list[str], aliases: list[str] | None = None
) -> dict[str, Any]:
    """One as OSV describes it, with the events of its range."""
    events = [{"introduced": "0"}, *({"fixed": version} for version in fixed)]
    affected = {
        "package": {"name": package, "ecosystem": "PyPI"},
        "ranges": [{"type": "ECOSYSTEM", "events": events}],
    }
    return {"id": number, "aliases": aliases or [], "summary": "Made up.", "affected": [affected]}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    osv: Osv

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        package = (query["package"]["name"], query["version"])
        assert query["package"]["ecosystem"] == "PyPI"
        self.osv.asked.append(package)
        if self.osv.held is not None:
            self.osv.held.wait(60)
        known = self.osv.known.get(package)
        content = (self.osv.text or json.dumps({"vulns": known} if known else {})).encode()
        with suppress(ConnectionError):  # of who has stopped waiting
            self.send_response(self.osv.status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def serving(osv: Osv) -> Iterator[str]:
    """Serves on a free port of this machine while the block runs; yields the address of its queries."""
    handler = type("Handler", (_Handler,), {"osv": osv})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/query"
        finally:
            if osv.held is not None:
                osv.held.set()
            server.shutdown()
            thread.join()
