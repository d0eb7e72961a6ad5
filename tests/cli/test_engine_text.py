import pytest

from kvweave.cli.engine_text import EngineDescription, known_keys, parse_engine
from kvweave.core.cache_config import CacheConfig, KVLayout
from kvweave.core.interval import Interval
from kvweave.core.parallel import ParallelConfig
from kvweave.errors import ConfigurationError


def refusal(text):
    with pytest.raises(ConfigurationError) as caught:
        parse_engine(text)
    return str(caught.value)


def test_short_keys_state_shape_and_cache():
    assert parse_engine("tp=4,block=32,layout=NHD") == EngineDescription(
        ParallelConfig(tp=4), CacheConfig(block_size=32, layout="NHD"), {}, ("tp", "block_size", "layout")
    )


def test_every_size_has_a_key():
    found = parse_engine("tp=4,pp=3,dcp=2,pcp=1,dp=8,interleave=16,stages=10/12/8").parallel
    assert found == ParallelConfig(tp=4, pp=3, dcp=2, dp=8, interleave=16, stage_layers=(10, 12, 8))


def test_every_choice_of_the_cache_has_a_key():
    order = "block=64,kernel_block=16,layout=BLHNC,packing=region,conv=DS"
    rest = "padding=128,blocks=9,dtype=float16,speculative_blocks=2,memory=VRAM,device=3"
    assert parse_engine(f"{order},{rest}").cache == CacheConfig(
        64, "BLHNC", 9, 16, "region", "DS", 128, "float16", 2, "VRAM", 3
    )


def test_intervals_are_stated_one_per_rank():
    assert parse_engine("tp=2,head=0-2/2-3").parallel.stated == {"head": (Interval(0, 2), Interval(2, 3))}


def test_what_an_engine_makes_of_the_model_is_kept_apart():
    found = parse_engine("tp=1,speculative_tokens=2,mtp=true,ssm_dtype=float32")
    assert found.model_options == {"speculative_tokens": 2, "mtp": True, "ssm_dtype": "float32"}


def test_spaces_and_case_do_not_matter():
    found = parse_engine(" tp = 2 , layout=hnd, packing=PAGE, conv=ds ")
    assert (found.parallel.tp, found.cache.layout) == (2, KVLayout.LBHNC)


def test_a_stated_number_of_blocks_is_remembered():
    assert parse_engine("blocks=8").states_num_blocks
    assert not parse_engine("block=8").states_num_blocks


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("tp=nan", ["tp", "'nan'", "whole number"]),
        ("tp=-1", ["tp", "-1", "between 0 and 4096"]),
        ("tp=0", ["tp", "0", "at least 1"]),
        ("tp=2.5", ["tp", "'2.5'"]),
        ("tp=", ["tp", "empty value"]),
        ("tp=٣", ["tp", "'٣'"]),
        ("tp=1e3", ["tp", "'1e3'"]),
        ("tp=99999999999999999999", ["tp", "99999999999999999999"]),
        ("tp=100000", ["tp", "100000", "4096"]),
        ("tp=4096,pp=64", ["262144", "4096"]),
        ("block=-16", ["block", "-16"]),
        ("block=0", ["block_size", "0"]),
        ("block=16,kernel_block=5", ["kernel_block_size", "5", "16"]),
        ("padding=inf", ["padding", "'inf'"]),
        ("layout=XYZ", ["layout", "'XYZ'", "LBHNC", "NHD"]),
        ("packing=loose", ["packing", "'loose'", "content"]),
        ("dtype=float17", ["dtype", "'float17'", "bfloat16"]),
        ("mtp=perhaps", ["mtp", "'perhaps'", "true or false"]),
        ("tp=4,dcp=3", ["dcp", "3", "tp=4"]),
        ("stages=10//8", ["stages", "empty value"]),
        ("pp=3,stages=1/2", ["stage_layers", "2", "pp=3"]),
        ("tp=2,head=0-2", ["head", "1 intervals", "tp=2"]),
        ("tp=2,head=0-2/3-1", ["head", "'3-1'", "start below stop"]),
        ("tp=2,head=0-2-3/3", ["head", "0-2-3/3"]),
        ("stated=head", ["stated", "head=0-2/2-3"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_value_is_refused_with_field_value_and_remedy(text, named):
    message = refusal(text)
    assert [word for word in named if word not in message] == []


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("tpp", "tp"),
        ("blok", "block"),
        ("layuot", "layout"),
        ("tensor_parallel_size", "tp"),
        ("pipeline_parallel", "pp"),
    ],
)
def test_a_misspelt_key_is_named_with_the_nearest_and_all_others(key, nearest):
    message = refusal(f"{key}=4")
    assert message.startswith(f"{key}: no such key; did you mean {nearest}?")
    assert known_keys() in message


def test_a_key_unlike_any_other_is_refused_without_a_guess():
    assert "did you mean" not in refusal("zzzzzz=1")


@pytest.mark.parametrize("text", ["tp=4,tp=4", "block=16,block_size=16", "tp=1,head=0-1,head=0-1"])
def test_a_key_stated_twice_is_refused(text):
    assert "stated twice" in refusal(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("tp4", "no '='"),
        ("tp=4,", "nothing between two commas"),
        ("some/engine", "no '='"),
    ],
)
def test_what_is_no_pair_is_refused(text, reason):
    assert reason in refusal(text)


@pytest.mark.parametrize("text", ["localhost:5555", "10.0.0.1:80", "tcp://host:1", "[::1]:5555"])
def test_an_address_is_refused_with_the_command_that_asks_running_engines(text):
    message = refusal(text)
    assert text in message
    assert "kvweave check HOST:PORT" in message


def test_a_file_may_use_long_names_and_lists(tmp_path):
    path = tmp_path / "engine.yaml"
    path.write_text(
        "tp: 2\npp: 2\nstage_layers: [3, 4]\nstated: {head: [[0, 2], [2, 3]]}\nblock_size: 64\nlayout: NHD\n"
    )
    found = parse_engine(str(path))
    assert found.parallel == ParallelConfig(
        tp=2, pp=2, stage_layers=(3, 4), stated={"head": (Interval(0, 2), Interval(2, 3))}
    )
    assert found.cache == CacheConfig(64, "NHD")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("tp: 2\nblok_size: 16", ["blok_size", "did you mean block_size?"]),
        ("tp: .nan", ["tp", "nan"]),
        ("tp: -2", ["tp", "-2"]),
        ("tp: 2.0", ["tp", "2.0"]),
        ("tp: true", ["tp", "True"]),
        ("tp:", ["tp", "empty value"]),
        ("tp: [2]", ["tp", "[2]"]),
        ("tp: 2\ntp: 2", ["tp", "stated twice"]),
        ("stage_layers: 3", ["stages", "3", "list"]),
        ("stated: {hed: [[0, 1]]}", ["stated", "'hed'", "head"]),
        ("head: [[0, 1, 2]]", ["head", "intervals"]),
        ("layout: 3", ["layout", "3", "word"]),
        ("3: 4", ["3: no such key"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_s_faults_are_named_with_the_file(tmp_path, content, named):
    path = tmp_path / "engine.yml"
    path.write_text(content)
    message = refusal(str(path))
    assert message.startswith(f"{path}: ")
    assert [word for word in named if word not in message] == []
