from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from kvweave.cli.options import parse_pair
from kvweave.cli.picture import draw_plan
from kvweave.core.plan import plan_transfer

SPACE = "{http://www.w3.org/2000/svg}"


PICTURE = Path(__file__).parents[2] / "docs" / "images" / "plan.svg"


def draw(model, prefill, decode):
    return ET.fromstring(draw_plan(plan_transfer(*parse_pair(prefill, decode, model, model).layouts(0))))


def texts(picture):
    return [element.text for element in picture.iter(f"{SPACE}text")]


def bands(picture):
    return [path for path in picture.iter(f"{SPACE}path") if path.get("fill") != "none"]


def dashes(picture):
    """The dashed lines between ranks; the last path is the legend's."""
    return [path for path in picture.iter(f"{SPACE}path") if path.get("stroke-dasharray")][:-1]


def test_every_rank_has_a_card_with_its_head_interval():
    found = texts(draw("llama-3.1-8b", "tp=2", "tp=4"))
    assert [text for text in found if text.startswith("tp") and len(text) == 3] == [
        "tp0",
        "tp1",
        "tp0",
        "tp1",
        "tp2",
        "tp3",
    ]
    assert [text for text in found if text.startswith("k, v: [")] == [
        f"k, v: {interval} of 8" for interval in ("[0, 4)", "[4, 8)", "[0, 2)", "[2, 4)", "[4, 6)", "[6, 8)")
    ]


def test_each_read_is_a_band():
    assert len(bands(draw("llama-3.1-8b", "tp=4", "tp=2"))) == 4


def test_replicas_are_dashed():
    picture = draw("deepseek-v3", "tp=4", "tp=2")
    assert (len(bands(picture)), len(dashes(picture))) == (2, 6)


def test_each_kind_has_a_colour_and_a_line_in_the_legend():
    picture = draw("nemotron-3-nano-30b-a3b", "tp=4", "tp=2")
    assert len({band.get("fill") for band in bands(picture)}) == 3
    assert "conv.x, ssm: one state per request, split in 64 parts" in texts(picture)


def test_stages_show_their_layers():
    assert "pp1.pcp0.tp0, layers [16, 32)" in texts(draw("llama-3.1-8b", "pp=2", "tp=1"))


def test_the_title_names_the_model_and_both_engines():
    picture = draw("llama-3.1-8b", "tp=4,block=16", "tp=2,block=128")
    assert picture.find(f"{SPACE}title").text == (
        "llama-3.1-8b: prefill tp=4, block 16, LBHNC to decode tp=2, block 128, LBHNC"
    )


@pytest.mark.parametrize(
    ("prefill", "decode", "hidden"), [(64, 4, [49]), (8, 32, [17]), (64, 32, [49, 17]), (16, 16, [])]
)
def test_ranks_beyond_sixteen_are_one_card(prefill, decode, hidden):
    found = texts(draw("deepseek-v3", f"tp={prefill}", f"tp={decode}"))
    assert [text for text in found if text.startswith("and ")] == [f"and {count} more ranks" for count in hidden]


def test_sources_that_serve_are_shown_before_others():
    found = texts(draw("deepseek-v3", "tp=64", "tp=4"))
    assert {"tp0", "tp16", "tp32", "tp48"} <= set(found)


@pytest.mark.parametrize("model", ["deepseek-v4-pro", "qwen3-next-80b-a3b", "mamba-130m-hf", "gemma-3-270m"])
def test_everything_lies_inside_the_picture(model):
    picture = draw(model, "tp=2,pp=2", "tp=4")
    width, height = float(picture.get("width")), float(picture.get("height"))
    for box in picture.iter(f"{SPACE}rect"):
        left, top, wide, high = (float(box.get(name)) for name in ("x", "y", "width", "height"))
        assert 0 <= left <= left + wide <= width
        assert 0 <= top <= top + high <= height


def test_the_picture_of_the_documents_is_what_the_command_draws():
    model = "nemotron-3-nano-30b-a3b"
    pair = parse_pair("tp=4,block=16,layout=HND", "tp=2,block=64,layout=NHD", model, model)
    assert PICTURE.read_text(encoding="utf-8") == draw_plan(plan_transfer(*pair.layouts(0)))
