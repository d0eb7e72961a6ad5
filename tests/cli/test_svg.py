from xml.etree import ElementTree as ET

from kvweave.cli import svg


def test_words_are_escaped():
    assert ET.fromstring(svg.words(0, 10, "a < b & c")).text == "a < b & c"


def test_a_picture_has_a_title_and_a_white_ground():
    picture = ET.fromstring("".join([*svg.opening(10, 20, "who & what"), "</svg>"]))
    assert [child.tag.partition("}")[2] for child in picture] == ["title", "rect"]
    assert picture[0].text == "who & what"
    assert picture[1].get("fill") == "#ffffff"


def test_a_band_goes_from_both_edges_to_both_edges():
    path = ET.fromstring(svg.band(0, 100, (1, 2), (3, 4), "#000000")).get("d")
    assert path == "M0,1.0 C45,1.0 55,3.0 100,3.0 L100,4.0 C55,4.0 45,2.0 0,2.0 Z"


def test_a_dashed_line_is_dashed_and_not_filled():
    line = ET.fromstring(svg.dashes(0, 100, 1, 3, "#000000"))
    assert (line.get("fill"), line.get("stroke-dasharray")) == ("none", "5 4")
