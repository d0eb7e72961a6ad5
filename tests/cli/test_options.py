import pytest

from kvweave.cli.options import describe_engine, parse_pair, parse_rank, parse_tokens
from kvweave.core.parallel import RankCoordinates
from kvweave.errors import ConfigurationError, LayoutError


def pair_of(prefill, decode, model="smollm2-135m"):
    return parse_pair(prefill, decode, model, model)


def test_a_rank_is_named_by_its_coordinates():
    assert parse_rank(" tp = 3, pp=1 ") == RankCoordinates(pp=1, tp=3)


@pytest.mark.parametrize("text", ["", "3", "tp=", "tp=-1", "tp=x", "dp=1", "tp=1,tp=2", "tp=٣"])
def test_what_is_no_rank_is_refused(text):
    with pytest.raises(ConfigurationError, match=r"^--target: "):
        parse_rank(text)


@pytest.mark.parametrize(("prefill", "decode", "option"), [("tpp=1", "tp=1", "--prefill"), ("tp=1", "", "--decode")])
def test_an_error_names_the_side(prefill, decode, option):
    with pytest.raises(ConfigurationError, match=f"^{option}: "):
        pair_of(prefill, decode)


def test_sizes_that_no_engine_could_have_name_side_and_both_numbers():
    with pytest.raises(LayoutError, match=r"^--decode: k, axis head: 3 units over tp=2: 3 does not divide by 2"):
        pair_of("tp=1", "tp=2").layouts(0)


def test_there_is_room_for_the_request_unless_blocks_are_stated():
    prefill, decode = pair_of("block=16", "block=64,blocks=5").layouts(1_000_000)
    assert (prefill.cache.num_blocks, decode.cache.num_blocks) == (62_500, 5)


def test_a_block_under_dcp_spans_the_tokens_of_its_peers():
    assert pair_of("tp=4,dcp=4,block=16", "block=32").span_tokens == 64


def test_an_engine_in_one_line_leaves_defaults_out():
    prefill, decode = pair_of("tp=3,pp=2,dp=4", "block=64,layout=NHD").layouts(0)
    assert describe_engine(prefill) == "tp=3, pp=2, dp=4, block 16, LBHNC"
    assert describe_engine(decode) == "tp=1, block 64, LBNHC"


def test_the_engine_s_own_model_options_reach_the_model():
    plain, speculating = pair_of("tp=1", "tp=1,speculative_tokens=2", "mamba-130m-hf").layouts(0)
    assert plain.model.bytes_per_request() < speculating.model.bytes_per_request()


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "1.5", "1e3", "٣", "9" * 20])
def test_a_length_that_no_request_has_is_refused(text):
    with pytest.raises(ConfigurationError, match=r"^--tokens: .* from 1 to"):
        parse_tokens(text)


def test_an_unstated_length_stays_unstated():
    assert parse_tokens(None) is None
