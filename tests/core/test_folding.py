import pytest

from kvweave.core.folding import fold_layers, fold_numbers


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([7], "7"),
        ([0, 1], "0-1"),
        ([0, 2], "0, 2"),
        ([0, 2, 4], "0-4 step 2"),
        ([4, 2, 2, 3], "2-4"),
        ([0, 1, 3, 5, 7, 9, 11], "0-1, 3, 5, ..., 11"),
    ],
    ids=["none", "one", "two in a row", "two apart", "regular", "unordered and repeated", "many runs"],
)
def test_numbers_fold_into_ranges(numbers, text):
    assert fold_numbers(numbers) == text


def test_modules_of_one_layer_are_named_side_by_side():
    names = ["model.layers.0.self_attn", "model.layers.0.self_attn.indexer", "model.layers.1.self_attn"]
    assert fold_layers(names) == ("0-1", "self_attn, self_attn.indexer")


def test_names_without_a_number_stand_as_they_are():
    assert fold_layers(["full.0", "full.1"]) == ("", "full.0, full.1")


def test_the_last_number_after_layers_counts():
    assert fold_layers(["draft.3.layers.5.mamba"]) == ("5", "mamba")
