import pytest


def test_a_pair_that_fits_is_answered_with_yes(run):
    result = run("check", "--model", "llama-3.1-8b", "--prefill", "tp=4", "--decode", "tp=2,block=128")
    assert result.exit_code == 0
    assert result.stdout.startswith("compatible: ")


def test_every_mismatch_is_shown_with_its_remedy(run):
    result = run("check", "-m", "gpt-oss-20b", "-p", "tp=4", "-d", "tp=2,dtype=fp8_e4m3")
    assert result.exit_code == 1
    assert result.stdout.startswith("NOT compatible: ")
    assert result.stdout.count("choose the same cache dtype on both sides") == 4


def test_the_document_has_field_both_values_and_remedy(run_document):
    code, document = run_document("check", "-m", "granite-4.0-h-tiny", "-p", "tp=2", "-d", "tp=2,speculative_tokens=2")
    assert (code, document["schema"], document["compatible"]) == (1, "kvweave.check/1", False)
    assert set(document["mismatches"][0]) == {"field", "source", "target", "remedy"}
    assert any("speculative" in mismatch["remedy"] for mismatch in document["mismatches"])


def test_a_compatible_pair_has_no_mismatches_in_the_document(run_document):
    code, document = run_document("check", "-m", "deepseek-v3", "-p", "tp=16", "-d", "tp=4,dp=8")
    assert (code, document["compatible"], document["mismatches"]) == (0, True, [])


def test_the_sides_may_serve_different_models(run):
    result = run("check", "--prefill-model", "qwen3-0.6b", "--decode-model", "qwen3-32b", "-p", "tp=1", "-d", "tp=1")
    assert result.exit_code == 1
    assert "qwen3-0.6b" in result.stdout
    assert "qwen3-32b" in result.stdout


def test_one_side_s_model_may_stand_for_both(run):
    assert run("check", "--decode-model", "qwen3-0.6b", "-p", "tp=1", "-d", "tp=2").exit_code == 0


def test_without_a_model_the_question_is_wrong(run):
    result = run("check", "-p", "tp=1", "-d", "tp=2")
    assert result.exit_code == 2
    assert "--model" in result.stderr


@pytest.mark.parametrize("address", ["localhost:5600", "tcp://10.0.0.1:5600"])
def test_an_address_is_no_description(run, address):
    result = run("check", "-m", "qwen3-0.6b", "-p", address, "-d", "tp=2")
    assert result.exit_code == 2
    assert "kvweave check HOST:PORT" in result.stderr


@pytest.fixture
def running():
    runtime_pair = pytest.importorskip("tests.runtime.pair", exc_type=ImportError)
    return runtime_pair.joined


def test_two_running_engines_are_asked(run, running):
    with running(decode_bind="127.0.0.1:0") as pair:
        result = run("check", pair.prefill.address, pair.decode.address)
        assert result.exit_code == 0
        assert result.stdout.startswith("compatible: ")


def test_mismatches_of_running_engines_have_their_remedy(run_document, running):
    from tests.runtime.memory import LATENT

    with running(decode_model=LATENT, decode_bind="127.0.0.1:0") as pair:
        code, document = run_document("check", pair.prefill.address, pair.decode.address)
    assert (code, document["compatible"]) == (1, False)
    assert all(mismatch["remedy"] for mismatch in document["mismatches"])


def test_running_engines_with_keys_are_asked_with_keys(run, running, tmp_path):
    from kvweave.runtime import CurveKeys
    from kvweave.runtime.keys import make_key_files

    names = ("prefill", "decode", "observer")
    made = {name: make_key_files(tmp_path, name) for name in names}
    keys = [CurveKeys.load(tmp_path / f"{name}.key_secret", tmp_path) for name in names[:2]]
    with running(keys=(keys[0], keys[1]), decode_bind="127.0.0.1:0") as pair:
        addresses = [f"prefill@{pair.prefill.address}", f"decode@{pair.decode.address}"]
        with_keys = ["--keys", str(tmp_path / "observer.key_secret"), "--allowed-keys", str(tmp_path)]
        assert run("check", *addresses, *with_keys).exit_code == 0
        without = run("check", *addresses)
        assert without.exit_code == 1
        assert "one side has keys" in without.stderr
    assert len({key.public for key in made.values()}) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["127.0.0.1:5"],
        ["127.0.0.1:5", "nowhere"],
        ["127.0.0.1:5", "127.0.0.1:6", "--keys", "x"],
        ["127.0.0.1:5", "127.0.0.1:6", "--model", "qwen3-0.6b"],
        ["--prefill", "tp=1"],
        ["-m", "qwen3-0.6b", "-p", "tp=1", "-d", "tp=1", "--keys", "x", "--allowed-keys", "y"],
    ],
    ids=["one address", "no address", "half of the keys", "described as well", "one engine", "keys of no engine"],
)
def test_a_wrong_question_about_running_engines_is_said(run, arguments):
    assert run("check", *arguments).exit_code == 2


def test_an_engine_that_does_not_run_is_no_good_answer(run):
    result = run("check", "127.0.0.1:9", "127.0.0.1:10")
    assert result.exit_code == 1
    assert "nobody listens there" in result.stderr
