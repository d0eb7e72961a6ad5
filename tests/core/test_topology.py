"""What a rank knows of itself and of remote engines, and how it shows it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.core.parallel import ParallelConfig, RankCoordinates
from kvweave.core.topology import RemoteEngine, TransferTopology
from kvweave.errors import ConfigurationError, LocalProtocolError

REMOTE = RemoteEngine(tp_size=8, block_size=32, block_bytes=4096)
remotes = st.builds(RemoteEngine, *[st.integers(1, 64)] * 5)


def topology(tp_rank: int = 0, tp_size: int = 1, num_kv_heads: int = 8, **more: object) -> TransferTopology:
    return TransferTopology(
        engine_id="decode",
        tp_rank=tp_rank,
        tp_size=tp_size,
        block_size=16,
        total_num_kv_heads=num_kv_heads,
        **more,  # type: ignore[arg-type]
    )


def shown(line: str) -> dict[str, str]:
    inside = line.removeprefix("TransferTopology(").removesuffix(")")
    return dict(part.split("=") for part in inside.split(", "))


@given(st.integers(1, 128), remotes)
def test_mla_shows_one_head_whatever_the_model_has(num_kv_heads: int, remote: RemoteEngine) -> None:
    for is_mla, heads in ((True, "1"), (False, str(num_kv_heads))):
        described = topology(num_kv_heads=num_kv_heads, is_mla=is_mla)
        described.register_remote_engine("prefill", remote)
        assert shown(described.describe("prefill"))["num_kv_heads"] == heads


@given(remotes)
def test_the_description_is_one_line_with_both_sides(remote: RemoteEngine) -> None:
    described = topology(tp_rank=1, tp_size=4, dcp_size=2)
    described.register_remote_engine("prefill", remote)
    line = described.describe("prefill")
    assert "\n" not in line
    assert shown(line) == {
        "local": "decode", "remote": "prefill", "num_kv_heads": "8", "local_tp": "4", "remote_tp": str(remote.tp_size),
        "local_rank": "1", "remote_pp": str(remote.pp_size), "local_dcp": "2", "remote_dcp": str(remote.dcp_size),
        "local_block_size": "16", "remote_block_size": str(remote.block_size),
        "remote_block_bytes": str(remote.block_bytes),
    }  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from("abc"), remotes), max_size=6))
def test_an_engine_is_known_from_its_registration_until_it_is_forgotten(steps: list[tuple[str, RemoteEngine]]) -> None:
    known = topology()
    for name, remote in steps:
        assert known.register_remote_engine(name, remote) == remote
        assert known.register_remote_engine(name, remote) == known.get_engine_info(name) == remote
        known.unregister_remote_engine(name)
        with pytest.raises(LocalProtocolError, match=f"engine {name}: not registered"):
            known.get_engine_info(name)


def test_an_engine_that_changed_under_its_id_is_refused_with_both_shapes() -> None:
    known = topology()
    known.register_remote_engine("prefill", REMOTE)
    with pytest.raises(LocalProtocolError, match=r"tp_size=8.*tp_size=4.*new id"):
        known.register_remote_engine("prefill", RemoteEngine(tp_size=4, block_size=32, block_bytes=4096))
    assert known.get_engine_info("prefill") == REMOTE


def test_the_local_engine_is_no_remote_one() -> None:
    with pytest.raises(LocalProtocolError, match="engine decode: it is the local engine"):
        topology().register_remote_engine("decode", REMOTE)


def test_an_unknown_engine_is_refused_with_those_that_are_known() -> None:
    known = topology()
    known.register_remote_engine("prefill", REMOTE)
    with pytest.raises(LocalProtocolError, match=r"engine other: not registered \(known: prefill\)"):
        known.describe("other")


def test_forgetting_an_unknown_engine_changes_nothing() -> None:
    known = topology()
    known.register_remote_engine("prefill", REMOTE)
    known.unregister_remote_engine("other")
    assert known.get_engine_info("prefill") == REMOTE


@given(st.integers(1, 16), st.data())
def test_a_topology_is_a_rank_of_an_engine(tp_size: int, data: st.DataObject) -> None:
    tp_rank = data.draw(st.integers(0, tp_size - 1))
    own = topology(tp_rank, tp_size, dcp_size=tp_size, interleave=16)
    assert own.rank == RankCoordinates(tp=tp_rank)
    assert own.parallel() == ParallelConfig(tp=tp_size, dcp=tp_size, interleave=16)
    assert own.rank in own.parallel().ranks()


@pytest.mark.parametrize("tp_rank", [-1, 4])
def test_a_rank_outside_its_engine_is_refused(tp_rank: int) -> None:
    with pytest.raises(ConfigurationError, match=f"tp_rank: {tp_rank} is outside tp_size=4; use 0 to 3"):
        topology(tp_rank, 4)


@pytest.mark.parametrize("name", ["tp_size", "block_size", "total_num_kv_heads", "dcp_size", "interleave"])
def test_a_size_below_one_is_refused(name: str) -> None:
    sizes = {"tp_size": 1, "block_size": 16, "total_num_kv_heads": 8} | {name: 0}
    with pytest.raises(ConfigurationError, match="at least 1"):
        TransferTopology(engine_id="decode", tp_rank=0, **sizes)


@pytest.mark.parametrize("name", ["tp_size", "block_size", "block_bytes", "pp_size", "dcp_size"])
def test_a_remote_size_below_one_is_refused_by_name(name: str) -> None:
    sizes = {"tp_size": 1, "block_size": 16, "block_bytes": 64} | {name: 0}
    with pytest.raises(ConfigurationError, match=f"remote engine: {name} is 0"):
        RemoteEngine(**sizes)
