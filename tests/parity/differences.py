"""Where kvweave and vLLM 0.32 differ on purpose, and why. A difference not listed here, or one that is gone, fails."""

from __future__ import annotations

from dataclasses import dataclass

Figures = dict[tuple[str, str], str]


@dataclass(frozen=True)
class Difference:
    """A case, what differs and for which pairs ``P>D`` (under dcp ``P tp/P dcp>D tp/D dcp``).

    What: a field of the mapping, ``bytes`` placed wrong by one side, or ``reads`` of right bytes made differently.
    """

    case: str
    what: str
    pairs: tuple[str, ...]
    reason: str


REPLICATED_GROUPS = (
    "Mamba2 with fewer groups than ranks: conv.b and conv.c are replicated, so their widths do not follow the ratio. "
    "vLLM derives them as if they were sharded and reads other channels, past the sections too; kvweave splits each "
    "array by its own units."
)
DRAFT = (
    "A latent beside grouped-query heads is whole on every rank. vLLM reads it once from every source of the heads, "
    "the last one staying; kvweave reads it once."
)
HEAD_COUNTS = (
    "Groups with head counts of their own: vLLM maps all groups by the model's one count; kvweave maps each by its own "
    "and gives no common number where there is none."
)
DCP_SLOTS = (
    "Under dcp the sources of a latent hold other tokens, not other heads. vLLM counts slots by query head, which its "
    "reads then ignore; kvweave gives slot 0."
)


SPLIT_HEADS = ("4>1", "4>2", "8>1", "8>2", "8>4", "16>1", "16>2", "16>4")
ONE_GROUP = ("1>2", "1>4", "1>8", "2>1", "2>4", "2>8", "4>1", "4>2", "4>8", "8>1", "8>2", "8>4")
TWO_GROUPS = ("1>4", "1>8", "2>4", "2>8", "4>1", "4>2", "4>8", "8>1", "8>2", "8>4")
FOUR_GROUPS = ("1>8", "2>8", "4>8", "8>1", "8>2", "8>4")

DIFFERENCES = (
    Difference(
        "GQA and MLA draft", "source_ranks_per_group",
        ("2>1", "4>1", "4>2", "8>1", "8>2", "12>1", "12>2", "16>1", "16>2"), DRAFT,
    ),
    Difference("GQA and MLA draft", "reads", ("2>1", "4>1", "4>2", "8>1", "8>2"), DRAFT),
    Difference("two head counts", "source_ranks_per_group", SPLIT_HEADS, HEAD_COUNTS),
    Difference("two head counts", "rank_to_attention_slot", SPLIT_HEADS, HEAD_COUNTS),
    Difference(
        "two head counts", "rank_offset_factor",
        ("1>4", "1>8", "1>16", "2>4", "2>8", "2>16", "4>8", "4>16"), HEAD_COUNTS,
    ),
    Difference(
        "MLA under dcp", "rank_to_attention_slot",
        (
            "2/2>1/1", "2/2>2/1", "2/2>4/1", "2/2>8/1", "4/4>1/1", "4/4>2/1", "4/4>2/2", "4/4>4/1", "4/4>8/1",
            "8/8>1/1", "8/8>2/1", "8/8>2/2", "8/8>4/1", "8/8>4/4", "8/8>8/1",
        ), DCP_SLOTS,
    ),
    Difference("GQA + Mamba2 with 1 groups", "bytes", ONE_GROUP, REPLICATED_GROUPS),
    Difference("GQA + Mamba2 with 2 groups", "bytes", TWO_GROUPS, REPLICATED_GROUPS),
    Difference("GQA + Mamba2 with 4 groups", "bytes", FOUR_GROUPS, REPLICATED_GROUPS),
    Difference("2048 channels + Mamba2 with 1 groups", "bytes", ONE_GROUP, REPLICATED_GROUPS),
    Difference("2048 channels + Mamba2 with 4 groups", "bytes", FOUR_GROUPS, REPLICATED_GROUPS),
)  # fmt: skip


def listed(case: str, what: str) -> set[str]:
    """The pairs for which a case is known to differ in that respect."""
    return {pair for entry in DIFFERENCES if (entry.case, entry.what) == (case, what) for pair in entry.pairs}
