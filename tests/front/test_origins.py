"""Only programs that call this service by its name are served: no rebound name, no page of others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.front.access import Origins, exposure
from service.front.settings import Settings
from tests.front.test_api_bad_input import GENERATE, refused
from tests.support.serving import BODY, Front, exchange, running

FOREIGN_HOSTS = [
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "192.0.2.1",
    "[2001:db8::1]:80",
    "",
]
FOREIGN_PAGES = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:9"},
    {"Origin": "http://["},
]
OWN_PAGES = [{"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}]
ACTING = [("POST", GENERATE), ("POST", "/v1/probes/sync-point"), ("GET", "/v1/modes")]
TYPES = [
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/jsonp",
]


@pytest.fixture(scope="module")
def named() -> Iterator[Front]:
    with running({"allowed_hosts": ["service", "Rooms.Example:8000"]}) as started:
        started.await_ready()
        yield started


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
@pytest.mark.parametrize("path", ["/v1/modes", "/docs", "/openapi.json"])
def test_a_foreign_host_is_refused_with_the_remedy(front: Front, host: str, path: str) -> None:
    error = refused(front.http.get(path, headers={"Host": host}), 403)
    assert error["type"] == "host_not_allowed"
    assert "LAUNCHBOUND_ALLOWED_HOSTS" in error["message"]


@pytest.mark.parametrize("host", ["localhost", "LocalHost:1", "127.0.0.1", "[::1]:8000", "[::1]"])
def test_this_machines_own_names_are_served(front: Front, host: str) -> None:
    assert front.generate(headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["service:8000", "rooms.example"])
def test_names_of_the_setting_are_served(named: Front, host: str) -> None:
    assert named.generate(headers={"Host": host}).status_code == 200


def test_without_a_host_a_request_is_refused(front: Front) -> None:
    assert exchange(front, b"GET /v1/modes HTTP/1.0\r\n\r\n").error()["type"] == "host_not_allowed"


@pytest.mark.parametrize("hosts", [(b"localhost", b"evil.example"), (b"evil.example", b"localhost")])
def test_a_request_for_two_hosts_is_refused(front: Front, hosts: tuple[bytes, bytes]) -> None:
    head = b"GET /v1/modes HTTP/1.1\r\nHost: %b\r\nHost: %b\r\nConnection: close\r\n\r\n" % hosts
    answer = exchange(front, head)
    assert (answer.status, answer.error()["type"]) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    ("bound", "names", "host", "passes"),
    [
        ("10.0.0.5", [], b"10.0.0.5:8000", True),
        ("10.0.0.5", [], b"10.0.0.6:8000", False),
        ("::1", [], b"[::1]:8000", True),
        ("box", [], b"box:8000", True),
        ("0.0.0.0", [], b"192.168.1.7:8000", True),
        ("::", [], b"[2001:db8::7]", True),
        ("0.0.0.0", [], b"evil.example", False),
        ("0.0.0.0", ["*"], b"anything.example", True),
    ],
)
def test_what_a_service_may_be_called_follows_from_where_it_is_bound(
    bound: str, names: list[str], host: bytes, passes: bool
) -> None:
    refusal = Origins(bound, names).refusal("GET", "/v1/modes", [(b"host", host)])
    assert (refusal is None) == passes


@pytest.mark.parametrize("headers", FOREIGN_PAGES, ids=str)
@pytest.mark.parametrize(("method", "path"), ACTING)
def test_a_page_of_another_origin_is_refused(
    front: Front, method: str, path: str, headers: dict[str, str]
) -> None:
    body = BODY if path == GENERATE else None
    assert refused(front.http.request(method, path, json=body, headers=headers), 403)["type"] == "cross_site"


FOLLOWED = {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
"""What a browser sends where a person follows a link of another page in a tab of its own."""


@pytest.mark.parametrize("site", ["same-site", "cross-site"])
def test_a_link_of_another_page_leads_to_a_trace(front: Front, site: str) -> None:
    answer = front.http.get("/v1/traces/none", headers=FOLLOWED | {"Sec-Fetch-Site": site})
    assert refused(answer, 404)["param"] == "identity"


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/traces", {}),
        ("/v1/modes", {}),
        ("/v1/traces/none", {"Sec-Fetch-Dest": "iframe"}),
        ("/v1/traces/none", {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}),
        ("/v1/traces/none", {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}),
    ],
)
def test_another_page_can_embed_and_fetch_no_trace(front: Front, path: str, headers: dict[str, str]) -> None:
    assert refused(front.http.get(path, headers=FOLLOWED | headers), 403)["type"] == "cross_site"


@pytest.mark.parametrize("headers", OWN_PAGES, ids=str)
def test_a_page_of_this_service_is_served(front: Front, headers: dict[str, str]) -> None:
    assert front.generate(headers=headers).status_code == 200
    assert front.generate(headers={"Origin": front.url}).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/metrics"])
def test_scrapers_and_orchestrators_call_by_any_name(front: Front, path: str) -> None:
    headers = {"Host": "10.1.2.3:8000", "Sec-Fetch-Site": "cross-site"}
    assert front.http.get(path, headers=headers).status_code == 200


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("path", [GENERATE, "/v1/compare", "/v1/studies/operators"])
def test_a_body_of_another_type_is_a_415_that_names_the_header(front: Front, path: str, kind: str) -> None:
    error = refused(front.http.post(path, content=b"{}", headers={"Content-Type": kind}), 415)
    assert error["type"] == "not_json"
    assert "Content-Type: application/json" in error["message"]


def test_a_body_without_a_type_is_a_415_too(front: Front) -> None:
    refused(front.http.post(GENERATE, content=b"{}"), 415)
    refused(front.http.post(GENERATE, content=iter([b"{}"])), 415)


def test_json_with_parameters_is_json(front: Front) -> None:
    assert front.generate(headers={"Content-Type": "Application/JSON; charset=utf-8"}).status_code == 200


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"host": "127.0.0.1"}, False),
        ({"host": "::1"}, False),
        ({"host": "localhost"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "box"}, True),
        ({"host": "0.0.0.0", "api_key": "k"}, False),
    ],
)
def test_bound_elsewhere_without_a_key_is_warned_of(settings: dict[str, str], warned: bool) -> None:
    warning = exposure(Settings(**settings))
    assert (warning is not None) == warned
    assert warning is None or "LAUNCHBOUND_API_KEY" in warning
