"""Keys: files that nobody else reads and nothing overwrites, allowed ones by name, ids bound to them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from kvweave.errors import ConfigurationError
from kvweave.runtime.addresses import PeerList
from kvweave.runtime.keys import CurveKeys, KeyFile, fingerprint, make_key_files, owns, read_key_folder
from tests.runtime.keyring import PAIRS, keys_of


def test_secret_half_is_its_owners_alone(tmp_path: Path) -> None:
    make_key_files(tmp_path / "new" / "folder", "a")
    secret = tmp_path / "new" / "folder" / "a.key_secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_files_hold_what_was_made(tmp_path: Path) -> None:
    made = make_key_files(tmp_path, "a")
    assert KeyFile.read(tmp_path / "a.key_secret") == made
    assert KeyFile.read(tmp_path / "a.key") == KeyFile("a", made.public)
    assert read_key_folder(tmp_path) == [made]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    made = make_key_files(tmp_path)
    with pytest.raises(ConfigurationError, match="not overwritten"):
        make_key_files(tmp_path)
    assert KeyFile.read(tmp_path / "engine.key_secret") == made


def test_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    make_key_files(tmp_path)
    (tmp_path / "engine.key_secret").chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        KeyFile.read(tmp_path / "engine.key_secret")


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    made = make_key_files(tmp_path)
    assert made.secret and made.secret not in repr(made)
    assert PAIRS["decode"][1] not in repr(keys_of("decode", "prefill"))


@pytest.mark.parametrize("name", ["", "../up", "a b", "x" * 101])
def test_name_must_be_one_of_a_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        make_key_files(tmp_path, name)


@pytest.mark.parametrize("content", ["", "nothing of that kind", 'curve\n    public-key = "short"\n', "x" * 5000])
def test_file_without_a_key_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.key"
    path.write_text(content, encoding="ascii")
    with pytest.raises(ConfigurationError, match="keys"):
        KeyFile.read(path)


def test_allowed_keys_are_a_folder_a_list_or_a_mapping(tmp_path: Path) -> None:
    own, other = make_key_files(tmp_path / "own"), make_key_files(tmp_path / "allowed", "prefill")
    secret_file = tmp_path / "own" / "engine.key_secret"
    assert CurveKeys.load(secret_file, tmp_path / "allowed").allowed == {"prefill": other.public}
    assert CurveKeys.load(secret_file, [other.public]).allowed == {fingerprint(other.public): other.public}
    assert CurveKeys.load(str(secret_file), {"p": other.public}) == CurveKeys(
        own.public, own.secret or "", {"p": other.public}
    )


@pytest.mark.parametrize("allowed", [[], ["no key"], "no/such/folder"], ids=["none", "malformed", "no folder"])
def test_allowed_keys_must_be_there(tmp_path: Path, allowed: object) -> None:
    make_key_files(tmp_path)
    with pytest.raises(ConfigurationError, match="key"):
        CurveKeys.load(tmp_path / "engine.key_secret", allowed)


def test_public_file_is_no_own_key(tmp_path: Path) -> None:
    make_key_files(tmp_path)
    with pytest.raises(ConfigurationError, match="key_secret"):
        CurveKeys.load(tmp_path / "engine.key", tmp_path)


def test_halves_must_belong_together() -> None:
    with pytest.raises(ConfigurationError, match="not the public key"):
        CurveKeys(PAIRS["decode"][0], PAIRS["prefill"][1], {"a": PAIRS["other"][0]})


def test_single_allowed_key_is_everybodys() -> None:
    assert keys_of("decode", "prefill").key_for(PeerList(), "10.0.0.1:5") == PAIRS["prefill"][0]


def test_of_several_keys_the_named_one_counts() -> None:
    keys = keys_of("decode", "prefill", "other")
    peers = PeerList.parse(["other@10.0.0.1:5", "prefill@10.0.0.0/8"])
    assert keys.key_for(peers, "10.0.0.1:5") == PAIRS["other"][0]
    assert keys.key_for(peers, "10.0.0.2:5") == PAIRS["prefill"][0]


@pytest.mark.parametrize(("peer", "text"), [("10.0.0.1", "NAME@10.0.0.1:5"), ("nobody@10.0.0.1", "nobody.key")])
def test_lacking_key_is_refused_with_the_line_to_add(peer: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        keys_of("decode", "prefill", "other").key_for(PeerList.parse([peer]), "10.0.0.1:5")


def test_engine_id_belongs_to_its_key() -> None:
    keys = keys_of("decode", "prefill")
    bound = keys.bound_id("decode-1")
    assert owns(keys.public, bound) and not owns(PAIRS["other"][0], bound)
    assert keys.bound_id(bound) == bound


def test_allowed_keys_have_names() -> None:
    keys = keys_of("decode", "prefill")
    assert keys.name_of(PAIRS["prefill"][0]) == "prefill"
    assert keys.name_of(PAIRS["stranger"][0]) is None
