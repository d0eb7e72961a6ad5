import json

import pytest

from kvweave.models import preset, presets


def test_every_preset_is_listed_with_its_name(run_document):
    code, document = run_document("models")
    assert code == 0
    assert [model["name"] for model in document] == list(presets())
    assert all(model["bytes_per_token"] or model["bytes_per_request"] for model in document)


def test_the_table_has_a_line_for_every_preset(run):
    lines = run("models").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(presets())


def test_one_model_is_shown_group_by_group(run):
    result = run("models", "gemma-3-27b")
    assert result.exit_code == 0
    assert "window.1024" in result.stdout
    assert "k (head 16, dim 128)" in result.stdout


def test_one_model_as_a_document_is_a_list_of_one(run_document):
    (model,) = run_document("models", "deepseek-v3")[1]
    assert (model["name"], model["groups"][0]["name"], model["bytes_per_token"]) == (
        "deepseek-v3",
        "full",
        576 * 2 * 61,
    )


def test_a_config_file_is_described_too(run_document, tmp_path):
    path = tmp_path / "mine" / "config.json"
    path.parent.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64}
    path.write_text(json.dumps(config | {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 10}))
    (model,) = run_document("models", str(path))[1]
    assert (model["name"], model["dtype_assumed"], model["bytes_per_token"]) == ("mine", True, 2 * 2 * 2 * 16 * 2)


@pytest.mark.parametrize("command", ["models", "plan", "check", "verify"])
def test_a_name_is_never_taken_for_markup(run, tmp_path, command):
    folder = tmp_path / "[red]mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(preset("smollm2-135m").config))
    pair = [f"--model={folder}", "-p", "tp=1", "-d", "tp=1"]
    result = run(command, *([str(folder)] if command == "models" else pair))
    assert result.exit_code == 0
    assert ("[red]mine" in result.stdout) == (command != "verify")


def test_an_unknown_model_is_a_wrong_question(run):
    result = run("models", "deepsek-v3")
    assert result.exit_code == 2
    assert "deepseek-v3" in result.stderr
