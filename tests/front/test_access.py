"""Who may call, what strangers learn, and that every error has the one shape, its status and its headers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from service.front.access import Origins, exposure
from service.front.errors import HostNotAllowed
from service.front.settings import Settings
from tests.support.serving import BODY, GENERATE, Front, exchange, refused, running, until

KEY = "k3y-of-the-tests"
WITH_KEY = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def locked() -> Iterator[Front]:
    """A front with a key, whose model lies in a private folder, and one of whose modes failed."""
    settings = {"api_key": KEY, "model": "/srv/private/our-model", "modes": ["eager", "no_grad", "compiled"]}
    with running({**settings, "require_modes": ["eager"]}, states={"compiled": "failed"}) as started:
        until(lambda: started.state.client.engine, "the engine")
        started.await_ready()
        yield started


# ---------------------------------------------------------------- errors


def test_what_is_not_there_is_a_404_without_a_redirect(front: Front) -> None:
    assert refused(front.http.get("/v1/nothing"), 404)["type"] == "not_found"
    refused(front.http.get("/metrics/"), 404)


@pytest.mark.parametrize("path", [GENERATE, "/health/ready"])
def test_a_fault_of_the_front_is_a_500_with_the_request_id(
    front: Front, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(front.state.client, "submit", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(front.state.client, "ready_modes", lambda *_: 1 / 0)
    by_id = {"X-Request-ID": "find-me"}
    answer = front.generate(headers=by_id) if path == GENERATE else front.http.get(path, headers=by_id)
    assert refused(answer, 500)["type"] == "internal"
    assert "division" not in answer.text
    assert answer.headers.get_list("x-request-id") == ["find-me"]
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("given", ["x" * 129, "with space", "a,b", "née", "../a"])
def test_a_malformed_request_id_is_replaced(front: Front, given: str) -> None:
    answer = front.generate(headers={"X-Request-ID": given.encode()})  # type: ignore[dict-item]
    assert answer.status_code == 200
    assert answer.headers["x-request-id"] != given


OF_PAGES = ("/", "/lab/play", "/docs", "/docs/start.js", "/openapi.json", "/metrics")
READ_ALONE = (*OF_PAGES, "/health", "/health/live", "/health/ready", "/v1/models", "/v1/modes", "/v1/traces")


@pytest.mark.parametrize("path", [*READ_ALONE, "/nothing"])
def test_head_is_answered_as_get_is_but_for_the_body(front: Front, path: str) -> None:
    got, head = front.http.get(path), front.http.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers["content-type"] == got.headers["content-type"]
    if path != "/metrics":  # which has moved meanwhile
        assert head.headers["content-length"] == got.headers["content-length"]
    assert len(head.headers["x-request-id"]) == 32
    answer = exchange(front, f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert (answer.status, answer.body) == (got.status_code, b"")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v1/modes", {"GET"}),
        ("HEAD", "/v1/completions", {"POST"}),
        ("GET", GENERATE, {"POST"}),
        ("OPTIONS", "/metrics", {"GET"}),
        ("PUT", "/v1/modes/auto/generate", {"POST"}),
    ],
)
def test_another_method_is_a_405_that_names_one_there_is(
    front: Front, method: str, path: str, allowed: set[str]
) -> None:
    answer = front.http.request(method, path, headers={"Content-Type": "application/json"})
    assert answer.status_code == 405
    assert method == "HEAD" or "method_not_allowed" in answer.text
    assert {name.strip() for name in answer.headers["allow"].split(",")} == allowed


# ---------------------------------------------------------------- the key


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": "Bearer ünïcode".encode()},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/modes"), ("POST", "/v1/compare"), ("POST", GENERATE)]
)
def test_without_the_key_a_v1_call_is_a_401(
    locked: Front, method: str, path: str, headers: dict[str, str | bytes]
) -> None:
    answer = locked.http.request(method, path, headers=headers)
    assert refused(answer, 401)["type"] == "unauthorised"
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_with_the_key_a_v1_call_is_served_and_it_is_nowhere_to_be_read(locked: Front) -> None:
    assert locked.generate(headers=WITH_KEY).status_code == 200
    assert KEY not in repr(locked.state.settings)
    assert KEY not in locked.http.get("/v1/modes", headers=WITH_KEY).text


def test_why_a_mode_failed_is_told_with_the_key_only(locked: Front) -> None:
    stranger = locked.http.get("/health/ready").json()["degraded"]["compiled"]
    friend = locked.http.get("/health/ready", headers=WITH_KEY).json()["degraded"]["compiled"]
    assert "as commanded" in friend
    assert "as commanded" not in stranger
    locked.command("!state eager failed", mode="no_grad", headers=WITH_KEY)  # which is required
    stranger = refused(locked.http.get("/health/ready"), 503)["message"]
    assert "eager failed" in stranger
    assert "as commanded" not in stranger
    assert "as commanded" in refused(locked.http.get("/health/ready", headers=WITH_KEY), 503)["message"]
    locked.command("!state eager ready", mode="no_grad", headers=WITH_KEY)
    locked.await_ready()


def test_why_the_engine_is_down_is_told_with_the_key_only(
    locked: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locked.state.client, "engine", None)
    monkeypatch.setattr(locked.state.client, "last_failure", "PermissionError: /srv/private")
    for path in ("/health/ready", "/health/live"):
        assert "/srv/private" not in locked.http.get(path).text
        assert "/srv/private" in locked.http.get(path, headers=WITH_KEY).text


def test_the_metrics_name_the_model_and_not_its_path(locked: Front) -> None:
    page = locked.http.get("/metrics").text
    assert 'name="our-model"' in page
    assert "/srv" not in page


@pytest.mark.parametrize("path", ["/metrics", "/docs", "/nothing", "/v1/modes"])
def test_browsers_take_no_answer_for_another_type_or_show_it_to_other_origins(
    front: Front, path: str
) -> None:
    headers = front.http.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"


def test_the_documentation_needs_no_other_host_and_allows_none(front: Front) -> None:
    page = front.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "http" not in page.text.replace("HTTP", "")
    kinds = {"swagger-ui-bundle.js": "javascript", "swagger-ui.css": "css", "start.js": "javascript"}
    for name, kind in kinds.items():
        assert f"docs/{name}" in page.text
        assert front.http.get(f"/docs/{name}").headers["content-type"].startswith(f"text/{kind}")
    refused(front.http.get("/redoc"), 404)


# ---------------------------------------------------------------- hosts and origins


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "192.0.2.1", "[2001:db8::1]:80", ""],
)
@pytest.mark.parametrize("path", ["/v1/modes", "/docs", "/openapi.json"])
def test_a_foreign_host_is_refused_with_the_remedy(front: Front, host: str, path: str) -> None:
    error = refused(front.http.get(path, headers={"Host": host}), 403)
    assert error["type"] == "host_not_allowed"
    assert "LAUNCHBOUND_ALLOWED_HOSTS" in error["message"]


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/modes HTTP/1.0\r\n\r\n",
        b"GET /v1/modes HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
        b"GET /v1/modes HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
    ids=["no host", "ours first", "ours last"],
)
def test_a_request_for_no_host_or_for_two_is_refused(front: Front, head: bytes) -> None:
    answer = exchange(front, head)
    assert (answer.status, answer.error()["type"]) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    ("bound", "names", "host", "passes"),
    [
        ("10.0.0.5", [], b"10.0.0.5:8000", True),
        ("10.0.0.5", [], b"10.0.0.6:8000", False),
        ("::1", [], b"[::1]:8000", True),
        ("0.0.0.0", [], b"192.168.1.7:8000", True),
        ("0.0.0.0", [], b"evil.example", False),
        ("0.0.0.0", ["*"], b"anything.example", True),
        ("127.0.0.1", ["service", "Rooms.Example:8000"], b"rooms.example", True),
        ("127.0.0.1", ["service", "Rooms.Example:8000"], b"service:8000", True),
    ],
)
def test_what_a_service_may_be_called_follows_from_where_it_is_bound(
    bound: str, names: list[str], host: bytes, passes: bool
) -> None:
    with nullcontext() if passes else pytest.raises(HostNotAllowed):
        Origins(bound, names).check("GET", "/v1/modes", [(b"host", host)])


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("method", "path"), [("POST", GENERATE), ("POST", "/v1/probes/sync-point"), ("GET", "/v1/modes")]
)
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


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/metrics"])
def test_scrapers_and_orchestrators_call_by_any_name(front: Front, path: str) -> None:
    headers = {"Host": "10.1.2.3:8000", "Sec-Fetch-Site": "cross-site"}
    assert front.http.get(path, headers=headers).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=x", None])
@pytest.mark.parametrize("path", [GENERATE, "/v1/compare", "/v1/studies/operators"])
def test_a_body_of_another_type_is_a_415_that_names_the_header(
    front: Front, path: str, kind: str | None
) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    error = refused(front.http.post(path, content=b"{}", headers=headers), 415)
    assert error["type"] == "not_json"
    assert "Content-Type: application/json" in error["message"]
    refused(front.http.post(path, content=iter([b"{}"]), headers=headers), 415)


def test_json_with_parameters_is_json(front: Front) -> None:
    assert front.generate(headers={"Content-Type": "Application/JSON; charset=utf-8"}).status_code == 200


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"host": "127.0.0.1"}, False),
        ({"host": "localhost"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "0.0.0.0", "api_key": "k"}, False),
    ],
)
def test_bound_elsewhere_without_a_key_is_warned_of(settings: dict[str, str], warned: bool) -> None:
    warning = exposure(Settings(**settings))
    assert (warning is not None) == warned
    assert warning is None or "LAUNCHBOUND_API_KEY" in warning
