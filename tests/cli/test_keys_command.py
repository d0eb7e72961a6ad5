import stat

import pytest

pytest.importorskip("zmq")


def test_keys_are_made_for_their_owner_alone(run, tmp_path):
    result = run("keys", "make", str(tmp_path / "keys"), "--name", "prefill")
    assert result.exit_code == 0
    assert "prefill.key_secret stays here" in result.stdout
    assert stat.S_IMODE((tmp_path / "keys" / "prefill.key_secret").stat().st_mode) == 0o600


def test_secret_keys_are_never_printed(run, tmp_path):
    made, shown = run("keys", "make", str(tmp_path)), run("keys", "show", str(tmp_path))
    secret = (tmp_path / "engine.key_secret").read_text().split("secret-key")[1].strip(' ="\n')
    assert secret not in made.stdout + made.stderr + shown.stdout + shown.stderr


def test_the_document_has_public_key_and_fingerprint(run_document, tmp_path):
    code, made = run_document("keys", "make", str(tmp_path))
    assert (code, made["schema"]) == (0, "kvweave.keys/1")
    assert set(made["keys"][0]) == {"name", "public_key", "fingerprint", "has_secret"}
    assert run_document("keys", "show", str(tmp_path)) == (0, made)
    (only,) = run_document("keys", "show", str(tmp_path / "engine.key"))[1]["keys"]
    assert not only["has_secret"]


def test_keys_that_exist_are_not_overwritten(run, tmp_path):
    run("keys", "make", str(tmp_path))
    before = (tmp_path / "engine.key_secret").read_text()
    result = run("keys", "make", str(tmp_path))
    assert result.exit_code == 2
    assert "not overwritten" in result.stderr
    assert (tmp_path / "engine.key_secret").read_text() == before


def test_a_folder_without_keys_is_a_wrong_question(run, tmp_path):
    result = run("keys", "show", str(tmp_path))
    assert result.exit_code == 2
    assert "kvweave keys make" in result.stderr
