"""Keys: which pair an engine has, whose public keys it knows, and what an engine id owes to its key.

A key is a ZeroMQ CURVE key (Curve25519), written in 40 letters (Z85). Key files have the form of pyzmq's and czmq's
certificates: ``NAME.key`` is public and goes into the other side's folder of allowed keys, ``NAME.key_secret`` stays
where it was made and nobody but its owner may read it::

    kvweave keys make prefill            prefill/engine.key_secret   stays
                                         prefill/engine.key     -->  decode's folder, as prefill.key

Nobody without an allowed key is answered. An engine id ends with the fingerprint of its engine's key, so that a peer
with another key cannot speak as that engine.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq import auth

from kvweave.errors import ConfigurationError
from kvweave.runtime.addresses import PeerList

PUBLIC, SECRET = ".key", ".key_secret"
MOST_KEY_FILE_BYTES = 4096
_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_NAME = re.compile(r"[\w.-]{1,100}")


@dataclass(frozen=True, slots=True)
class KeyFile:
    """What one key file holds. ``secret`` is None in a public one."""

    name: str
    public: str
    secret: str | None = field(default=None, repr=False)

    @staticmethod
    def read(path: Path) -> KeyFile:
        """The key in a file; raises ``ConfigurationError`` when it is none, or is secret and readable by others."""
        try:
            if path.stat().st_size > MOST_KEY_FILE_BYTES:
                raise ConfigurationError(f"{path.stat().st_size} bytes are more than a key file has")
            public, secret = (None if key is None else key.decode() for key in auth.load_certificate(str(path)))
        except (OSError, ValueError, LookupError) as error:
            why = getattr(error, "strerror", None) or error  # without the path that an OSError's text repeats
            raise ConfigurationError(f"keys: {path}: {why}; make one: kvweave keys make FOLDER") from error
        if secret is not None and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigurationError(f"keys: {path} is secret, but others may read it; chmod 600 {path}")
        return KeyFile(path.name.removesuffix(SECRET).removesuffix(PUBLIC), checked_key(public), secret)


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """An engine's own pair, and the public keys of all engines that it talks to, by name."""

    public: str
    secret: str = field(repr=False)
    allowed: Mapping[str, str]

    def __post_init__(self) -> None:
        checked_key(self.public)
        try:
            derived = zmq.curve_public(checked_key(self.secret).encode()).decode()
        except (zmq.ZMQError, ValueError) as error:
            raise ConfigurationError(f"keys: the secret key is none: {error}") from error
        if derived != self.public:
            raise ConfigurationError(f"keys: {self.public} is not the public key of this secret key; make a new pair")
        if not self.allowed:
            raise ConfigurationError(
                "allowed_keys: none, so that nobody could connect; put the other side's .key files there"
            )
        for key in self.allowed.values():
            checked_key(key)

    @staticmethod
    def load(secret_file: str | Path, allowed: str | Path | Mapping[str, str] | Iterable[str]) -> CurveKeys:
        """From a secret key file, and the allowed keys: a folder of ``.key`` files, or public keys, named or not."""
        own = KeyFile.read(Path(secret_file))
        if own.secret is None:
            raise ConfigurationError(f"keys: {secret_file} has no secret key; name the file {own.name}{SECRET}")
        return CurveKeys(own.public, own.secret, _allowed(allowed))

    def name_of(self, key: str) -> str | None:
        """What an allowed key is called; None for every other."""
        return next((name for name, known in self.allowed.items() if known == key), None)

    def key_for(self, peers: PeerList, address: str) -> str:
        """The key that the engine at an address must have; raises ``ConfigurationError`` that names the line to add."""
        name = peers.key_name(address)
        if name is None and len(self.allowed) == 1:
            return next(iter(self.allowed.values()))
        known = ", ".join(sorted(self.allowed))
        if name is None:
            raise ConfigurationError(
                f"peers: nothing says which of the allowed keys {address} has ({known}); write NAME@{address}"
            )
        if name not in self.allowed:
            raise ConfigurationError(
                f"peers: {address} has the key {name!r}; add {name}.key to the allowed ones ({known})"
            )
        return self.allowed[name]

    def bound_id(self, engine_id: str) -> str:
        """The engine id with this key's fingerprint at its end."""
        return engine_id if owns(self.public, engine_id) else f"{engine_id}.{fingerprint(self.public)}"


def fingerprint(key: str) -> str:
    """A public key in 16 letters, for engine ids and logs.

    >>> fingerprint("yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID")
    '1395cd19c72f75d1'
    """
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def owns(key: str, engine_id: str) -> bool:
    """Whether an engine with this key may call itself so."""
    return engine_id.endswith(f".{fingerprint(key)}")


def make_key_files(folder: Path, name: str = "engine") -> KeyFile:
    """A new pair in ``folder``: the secret half for nobody but its owner. Overwrites nothing.

    Raises ``ConfigurationError`` when there is a key of that name, or the folder cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"name: {name!r} is no name of a file; use letters, digits, '.', '_' and '-'")
    public, secret = (key.decode() for key in zmq.curve_keypair())
    made = KeyFile(name, public, secret)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(folder / f"{name}{SECRET}", 0o600, made)
        _write(folder / f"{name}{PUBLIC}", 0o644, KeyFile(name, public))
    except FileExistsError as error:
        raise ConfigurationError(
            f"keys: {error.filename} exists and is not overwritten; choose another folder or name, or remove it"
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"keys: {folder}: {error.strerror or error}; name a folder that can be written"
        ) from error
    return made


def read_key_folder(folder: Path) -> list[KeyFile]:
    """All keys of a folder, one per name, with their secret halves where they are there; sorted by name."""
    found = {key.name: key for key in map(KeyFile.read, sorted(folder.glob(f"*{PUBLIC}")))}
    found |= {key.name: key for key in map(KeyFile.read, sorted(folder.glob(f"*{SECRET}")))}
    return [found[name] for name in sorted(found)]


def checked_key(key: str | None) -> str:
    """The key; raises ``ConfigurationError`` when these letters are none."""
    if key is None or not _KEY.fullmatch(key):
        raise ConfigurationError(f"keys: {key!r} is no key of 40 letters; `kvweave keys show` prints public ones")
    return key


def _allowed(allowed: str | Path | Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    if isinstance(allowed, Mapping):
        return dict(allowed)
    if not isinstance(allowed, str | Path):
        return {fingerprint(key): checked_key(key) for key in allowed}
    folder = Path(allowed)
    if not folder.is_dir():
        raise ConfigurationError(f"allowed_keys: {folder} is no folder; name one with the other side's .key files")
    return {key.name: key.public for key in map(KeyFile.read, sorted(folder.glob(f"*{PUBLIC}")))}


def _write(path: Path, mode: int, key: KeyFile) -> None:
    lines = ["metadata", "curve", f'    public-key = "{key.public}"']
    if key.secret is not None:
        lines.insert(0, "# A secret key of kvweave: keep it where it was made, readable by nobody else.")
        lines.append(f'    secret-key = "{key.secret}"')
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(opened, "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")
