"""Who has not the key learns no path and no exception; every address and answer is in the one shape."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.front.routes import pages
from tests.front.test_api_bad_input import refused
from tests.support.serving import Front, exchange, running, until

KEY = {"Authorization": "Bearer secret"}
MODEL = "/srv/private/our-model"


@pytest.fixture(scope="module")
def locked() -> Iterator[Front]:
    settings = {"api_key": "secret", "model": MODEL, "modes": ["eager", "compiled"]}
    with running(settings, states={"compiled": "failed"}) as started:
        until(lambda: started.state.client.engine, "the engine")
        yield started


def test_why_a_mode_failed_is_told_with_the_key_only(locked: Front) -> None:
    stranger = locked.http.get("/health/ready").json()["degraded"]["compiled"]
    friend = locked.http.get("/health/ready", headers=KEY).json()["degraded"]["compiled"]
    assert "as commanded" in friend
    assert "as commanded" not in stranger


def test_why_a_required_mode_failed_is_told_with_the_key_only() -> None:
    settings = {"api_key": "secret", "modes": ["eager", "compiled"], "require_modes": ["compiled"]}
    with running(settings, states={"compiled": "failed"}) as front:
        until(lambda: front.state.client.engine, "the engine")
        stranger = refused(front.http.get("/health/ready"), 503)["message"]
        friend = refused(front.http.get("/health/ready", headers=KEY), 503)["message"]
        assert "compiled failed" in stranger
        assert "as commanded" in friend
        assert "as commanded" not in stranger


@pytest.mark.parametrize("path", ["/health/ready", "/health/live"])
def test_why_the_engine_is_down_is_told_with_the_key_only(path: str) -> None:
    with running({"api_key": "secret"}, silent=True) as front:
        front.state.client.last_death = "PermissionError: /srv/private"
        assert "/srv/private" not in front.http.get(path).text
        assert "/srv/private" in front.http.get(path, headers=KEY).text


def test_the_metrics_name_the_model_and_not_its_path(locked: Front) -> None:
    page = locked.http.get("/metrics").text
    assert 'name="our-model"' in page
    assert "/srv" not in page


@pytest.mark.parametrize("address", [b"/no?\xff", b"/v1/completions?\xff", b"/%ff", b"/v1/%00"])
def test_an_address_of_any_bytes_is_answered_in_the_one_shape(front: Front, address: bytes) -> None:
    answer = exchange(front, b"GET " + address + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert answer.status in (400, 404, 405)
    assert answer.error()["message"]


def test_every_answer_says_that_its_type_is_meant(front: Front) -> None:
    for path in ("/metrics", "/docs", "/nothing", "/v1/modes"):
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
    for name, kind in pages.DOCS_FILES.items():
        assert f"docs/{name}" in page.text
        assert front.http.get(f"/docs/{name}").headers["content-type"].startswith(kind)
    refused(front.http.get("/docs/README.md"), 404)
    refused(front.http.get("/redoc"), 404)
    assert front.http.get("/openapi.json").json()["openapi"].startswith("3.")
