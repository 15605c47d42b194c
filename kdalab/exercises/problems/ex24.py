"""Where do a tree and blocks differ? The specification runs both caches of the project."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kdalab.cache import (
    BlockConfig,
    BlockRetention,
    BlockStateCache,
    Checkpoint,
    PrefixKey,
    RadixStateCache,
    parse_placement,
    plain_groups,
)
from kdalab.exercises.exercise import Exercise, Given
from kdalab.viz.answers import Cell, Picture, Row, Rows

Tokens = tuple[int, ...]


@st.composite
def _cases(draw: st.DrawFn) -> Given:
    block = draw(st.sampled_from([1, 2]))
    runs = st.lists(st.sampled_from([(0,) * block, (0,) * block, (1,) * block]), max_size=5)
    prompt = st.builds(
        lambda parts, loose: tuple(t for part in parts for t in part) + loose,
        runs,
        st.sampled_from([(2,), (3,), (0,)]),
    )
    return {"prompts": draw(st.lists(prompt, min_size=1, max_size=5)), "block": block}


def restores(prompts: list[Tokens], block: int) -> list[tuple[int, int]]:
    """Restore points of each prompt, in the tree and in blocks."""
    tree = RadixStateCache(block, block)
    config = BlockConfig(plain_groups(block, block), 400, retention=BlockRetention(0))
    blocks = BlockStateCache(config)
    return [(_tree(tree, tokens, block), _blocks(blocks, tokens, block)) for tokens in prompts]


def _tree(cache: RadixStateCache, tokens: Tokens, page: int) -> int:
    """One request through the tree, with the placement ``leaf+branch``."""
    key = PrefixKey.from_tokens(tokens, page)
    found = cache.lookup(key)
    lease = cache.acquire(found)
    cache.unlock_state(lease)
    placement = parse_placement("leaf+branch")
    for at in placement.boundaries(len(tokens), found.restore, found.branching, page):
        pages = tuple(range((at - lease.boundary) // page))  # their numbers do not matter here
        lease = cache.commit(lease, key, pages, Checkpoint(0, at)).lease
    cache.release(lease)
    return found.restore


def _blocks(cache: BlockStateCache, tokens: Tokens, block: int) -> int:
    """One request through the blocks, a block a chunk; retention 0 says which states stay."""
    found = cache.lookup(PrefixKey.from_tokens(tokens, block))
    lease = cache.acquire(found)
    at = found.restore
    while at < len(tokens):
        at = cache.chunk_end(lease, block)
        assert cache.allocate(lease, at) is not None
        lease = cache.advance(lease, at)
        cache.step_done()
    cache.release(lease)
    return found.restore


def expected(prompts: list[Tokens], block: int) -> tuple[int, int, int]:
    """The first row of :func:`restores` with two numbers."""
    for index, (tree, blocks) in enumerate(restores(prompts, block)):
        if tree != blocks:
            return index, tree, blocks
    return -1, 0, 0


def picture(given: Given, expected: Any, got: Any) -> Picture:
    """The prompts, with the restore points of both caches under them."""
    rows = []
    for i, (tokens, (tree, blocks)) in enumerate(
        zip(given["prompts"], restores(given["prompts"], given["block"]), strict=True)
    ):
        cells = tuple(Cell(n, n + 1, "kv", str(t)) for n, t in enumerate(tokens))
        rows.append(Row(f"{i}: tree {tree}, blocks {blocks}", cells, tuple({tree, blocks} - {0})))
    return Rows(tuple(rows))


EXERCISE = Exercise(
    number=24,
    title="The first difference",
    level=3,
    notebook="14_sglang_and_vllm",
    function="first_difference",
    statement="""
        A radix tree and a block cache serve the same prompts, one after the other, and never evict.
        Write `first_difference(prompts, block)`: a small model of both, which returns
        `(index, tree_restore, block_restore)` of the first prompt that they restore at different
        boundaries, or `(-1, 0, 0)`.

        * Either restores at the largest multiple of `block` at which it has a state of just this
          prefix and which leaves a token to compute.
        * The text of a finished prompt is known to both, up to its last multiple of `block`.
        * **Tree** (placement `leaf+branch`): a prompt leaves a state at its last multiple of
          `block`.
        * **Blocks** (retention 0): it leaves one at its last multiple of `block` that is less than
          its length: further on, this prompt itself could not use it.
        * Either: if the prompt's text was known further than the deepest state on the way, it also
          leaves a state where the known text ends (branching point, junction). Look up first, then
          leave.
    """,
    cases=_cases,
    expected=expected,
    hints=(
        "Keep three sets of prefixes, `tokens[:b]`: the known ones, those with a state in the tree,"
        " those with a state in blocks.",
        "Look up first, in all sets; only then add what the prompt leaves. How far the text is "
        "known, and the deepest state on it, may reach the prompt's very end.",
        "The leaf is `tokens[: n // block * block]`, the tail `tokens[: (n - 1) // block * block]`:"
        " who goes on where another has ended exactly on a block finds a state in the tree only.",
    ),
    picture=picture,
)
