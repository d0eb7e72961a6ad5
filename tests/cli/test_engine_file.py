import pytest

from kvweave.cli.engine_file import read_engine_file
from kvweave.errors import ConfigurationError


def test_pairs_come_in_order_and_repeated_ones_stay(tmp_path):
    path = tmp_path / "engine.yaml"
    path.write_text("tp: 4\nblock_size: 16\ntp: 2\n")
    assert read_engine_file(path) == [("tp", 4), ("block_size", 16), ("tp", 2)]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "holds no mapping"),
        (b"- tp", "holds no mapping"),
        (b"{}", "holds no mapping"),
        (b"tp: [", "no YAML"),
        (b"[" * 5000, "no YAML"),
        (b"tp: 1" + b"0" * 5000, "no YAML"),
        (b"tp: !!python/name:os.system x", "no YAML"),
        (b"tp: &a [*a]", "no YAML"),
        (b"tp: 1\n---\ntp: 2", "no YAML"),
        (b"\xff\xfe\x00", "not UTF-8"),
    ],
    ids=["empty", "list", "no keys", "open", "deep", "long number", "object", "recursive", "two documents", "binary"],
)
def test_a_file_without_an_engine_is_refused_by_name(tmp_path, content, reason):
    path = tmp_path / "engine.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        read_engine_file(path)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)


def test_a_file_that_does_not_exist_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigurationError, match=r"engine.yaml: cannot be read"):
        read_engine_file(tmp_path / "engine.yaml")


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_engine_file(tmp_path)
