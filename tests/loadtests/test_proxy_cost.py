"""What a proxy costs, measured at stand-ins: in turn, over two connections, of one replica."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtests.proxy_cost.__main__ import main
from loadtests.proxy_cost.pairs import WARMUP_PAIRS, Pair, measure, summary
from loadtests.run.target import TargetError
from tests.support.fake_service import Script, fake_service


class Ways(list[dict[str, str]]):
    """What a stand-in keeps of requests: which way each came, in the `order` of all."""

    def __init__(self, way: str, order: list[str]) -> None:
        super().__init__()
        self._way, self._order = way, order

    def append(self, headers: dict[str, str]) -> None:
        self._order.append(self._way)


def pair(direct: float, proxy: float, total: float = 0.0) -> Pair:
    return Pair(
        direct_seconds=direct, direct_total_seconds=total, proxy_seconds=proxy, proxy_total_seconds=total
    )


def test_the_difference_is_that_of_each_pair() -> None:
    """A machine that becomes slower changes both sides of a pair, and its difference not at all."""
    found = summary([pair(0.010 + n, 0.013 + n) for n in range(20)])
    assert found["added_seconds"]["value"] == pytest.approx(0.003)
    assert found["added_seconds"]["low"] == pytest.approx(found["added_seconds"]["high"])
    assert found["direct_seconds"]["high"] > found["direct_seconds"]["low"] + 1


def test_what_the_service_took_is_left_out_of_the_second_difference() -> None:
    taken = Pair(
        direct_seconds=0.010, direct_total_seconds=0.008, proxy_seconds=0.020, proxy_total_seconds=0.014
    )
    assert taken.added_seconds == pytest.approx(0.010)
    assert taken.added_outside_seconds == pytest.approx(0.004)


def test_the_share_is_of_a_request_by_the_proxy() -> None:
    assert summary([pair(0.030, 0.040)] * 10)["added_share"] == pytest.approx(0.25)


def test_too_few_pairs_have_no_interval() -> None:
    assert summary([pair(0.010, 0.013)])["added_seconds"]["low"] is None


def test_requests_alternate_and_every_pair_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = list[str]()
    proxy = Script(replica="r1", headers=Ways("proxy", order))
    direct = Script(headers=Ways("direct", order))
    with fake_service(proxy) as by_proxy, fake_service(direct) as straight:
        assert (
            main([by_proxy, straight, "--pairs", "6", "--mode", "eager", "--out", str(tmp_path / "new")]) == 0
        )
    assert order == ["direct", "proxy"] * (WARMUP_PAIRS + 6)
    document = json.loads((tmp_path / "new" / "proxy_cost.json").read_text())
    assert len(document["pairs"]) == 6
    assert document["summary"]["added_seconds"]["samples"] == 6
    assert document["request"]["mode"] == "eager"
    assert "| added, of each pair |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("proxy", "direct", "remedy"),
    [
        (Script(), Script(), "is no proxy of replicas"),
        (Script(replica="r1"), Script(replica="r1"), "is a proxy too"),
    ],
)
def test_addresses_that_are_not_a_proxy_and_a_replica_are_refused(
    proxy: Script, direct: Script, remedy: str
) -> None:
    with fake_service(proxy) as one, fake_service(direct) as other, pytest.raises(TargetError, match=remedy):
        measure(one, other, 1, "eager", 4)


def test_a_request_that_fails_ends_the_measurement() -> None:
    with (
        fake_service(Script(replica="r1")) as one,
        fake_service(Script(fail_after=3)) as other,
        pytest.raises(TargetError, match="answered 500"),
    ):
        measure(one, other, 6, "eager", 4)


def test_an_address_where_nothing_answers_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["http://127.0.0.1:1", "http://127.0.0.1:1", "--pairs", "1"]) == 2
    assert "nothing answers at" in capsys.readouterr().err
