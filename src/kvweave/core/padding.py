"""Up to where a request is moved: to its last token, or to the end of that token's kernel block, if that is cheaper.

A page whose tokens lie inside heads and dims falls into as many pieces as these when it is cut off at a token, and is
one piece when it is whole::

    K [head 4][dim 32][token 128], 5 tokens of it      128 rows of 20 bytes      or 1 row of 64 KB

Behind the last token both pages hold nothing that anybody looks at before he has written it: a partly filled block is
its request's own on either side. So that much may be moved with it, as all of them move what is between two arrays of a
page. It is done for whole requests only, of models that keep all tokens or states; ``TransferPlan.descriptors`` itself
moves the tokens that it is asked for, and no other byte.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvweave.core.array import FullReach
from kvweave.core.bundle import Bundle, bundle_reads
from kvweave.core.cost import TransferRates
from kvweave.core.read import Read, ReadEnd


def padding_tokens(reads: Iterable[Read]) -> int:
    """To a multiple of how many tokens the requests of these reads of one target rank are rounded up; 1 for not at all.

    It always divides the block size of either side, so that no request needs another block for it.
    """
    bundles = [bundle for bundle in bundle_reads(reads, salt=0) if bundle.read.array.tokens is not None]
    sizes = {_kernel_block_tokens(bundle) for bundle in bundles}
    if len(sizes) != 1:
        return 1
    (tokens,) = sizes
    saved_rows = sum(_saved_rows(bundle) * len(bundle.read.layers) for bundle in bundles)
    token_bytes = sum(int(bundle.runs.nbytes.sum()) * len(bundle.read.layers) for bundle in bundles)
    return tokens if saved_rows * TransferRates().row_bytes > token_bytes * (tokens - 1) else 1


def padded(num_tokens: int, start_token: int, padding: int) -> int:
    """The tokens to move of a request of ``num_tokens`` of which the target has ``start_token`` already.

    >>> padded(257, 0, 128), padded(256, 0, 128), padded(257, 257, 128), padded(257, 0, 1)
    (384, 256, 257, 257)
    """
    return -(-num_tokens // padding) * padding if start_token < num_tokens else num_tokens


def _kernel_block_tokens(bundle: Bundle) -> int:
    """Tokens of a kernel block, where it is as large on both sides and all its tokens are kept; otherwise 1."""
    tokens, source, target = bundle.read.array.tokens, bundle.source, bundle.read.target
    entries = source.geometry.kernel_block_entries
    plain = tokens is not None and tokens.tokens_per_entry == 1 and isinstance(tokens.reach, FullReach)
    same = entries == target.geometry.kernel_block_entries and _undealt(source) and _undealt(target)
    return entries if plain and same else 1


def _undealt(end: ReadEnd) -> bool:
    return end.tokens is None or end.tokens.count == 1


def _saved_rows(bundle: Bundle) -> int:
    """Rows of one layer that a whole kernel block needs fewer than one token of it."""
    return len(bundle.runs.nbytes) - len(bundle.block_runs.nbytes) if bundle.block_runs else 0
