"""Requests through ``BlockStateCache``: vLLM's blocks, with the bytes of a real layout.

The trace's block is the finest unit that hashes can have here; the model's sizes say how many
tokens an attention block must have to hold a state (see ``kdalab.cache.groups``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import lcm

from kdalab.cache import (
    BlockConfig,
    BlockLayout,
    BlockRetention,
    BlockStateCache,
    CacheMode,
    Lease,
    PrefillFlops,
    PrefixKey,
    attention_block,
    group_layers,
    layer_specs,
    packed_layout,
    padded_layout,
)
from kdalab.errors import KdalabError
from kdalab.lab.account import Account, Usage
from kdalab.lab.marconi_block import tune_block_alpha
from kdalab.lab.policies import block_order, is_marconi_auto
from kdalab.lab.request import Requests, TraceRequest
from kdalab.lab.setup import Setup
from kdalab.spec import state_sizes
from kdalab.units import format_bytes

#: vLLM's alignment of attention blocks for Kimi models.
ALIGN = 128
#: Blocks that an unlimited memory is made of at most.
MAX_BLOCKS = 2_000_000


def layout_for(setup: Setup, trace_block: int) -> BlockLayout:
    """Groups and pages of the setup's model, on blocks that the trace's ids can name.

    Raises:
        KdalabError: a block that the trace's own block does not divide; pages that do not fit.
    """
    sizes = state_sizes(setup.spec)
    state = sizes.recurrent_bytes_per_layer + sizes.conv_bytes_per_layer
    token = sizes.latent_bytes_per_token_per_layer
    block = setup.block
    if block is None:
        block = attention_block(state, token, lcm(ALIGN, trace_block))
    least = trace_block if setup.layout == "packed" else attention_block(state, token, trace_block)
    if block % trace_block or block < least:
        near = max(least, round(block / trace_block) * trace_block)
        raise KdalabError(
            f"blocks of {block:,} tokens: this trace's ids stand for {trace_block:,} tokens each"
            + (
                f", and in the padded layout a block holds a state of {format_bytes(state)}"
                if setup.layout == "padded"
                else ""
            )
            + f"; use a multiple of {trace_block:,} from {least:,} up (near here: {near:,}"
            + (f"; layout=packed takes {trace_block:,})" if least > trace_block else ")")
        )
    groups = group_layers(layer_specs(setup.spec, block=block))
    return padded_layout(groups) if setup.layout == "padded" else packed_layout(groups)


@dataclass(slots=True)
class BlockServed:
    """A request that has been prefilled. Tokens, bytes."""

    request: TraceRequest
    restore: int
    known: int
    loaded_bytes: int = 0
    lease: Lease | None = field(default=None, repr=False)


class BlockRun:
    """One block cache under one setup.

    Args:
        trace: read once where memory is unlimited, to know how many blocks that are; where alpha
            is to be tuned, for every alpha that is tried.

    Raises:
        KdalabError: sizes that do not go together; the message says which.
    """

    def __init__(self, setup: Setup, trace: Requests, account: Account) -> None:
        self.setup, self.account = setup, account
        self.flops = PrefillFlops.of(setup.spec)
        self.state_bytes = state_sizes(setup.spec).checkpoint_bytes
        layout = layout_for(setup, trace.block_tokens)
        self.stride = layout.stride
        self.block = layout.groups[0].block_tokens
        unit = self.block if setup.unit is None else setup.unit
        if unit % trace.block_tokens:
            raise KdalabError(
                f"a match unit of {unit:,} tokens on a trace whose ids stand for "
                f"{trace.block_tokens:,} each; use a multiple of that"
            )
        n_blocks = self._count(trace, len(layout.groups))
        config = BlockConfig(
            layout.groups,
            n_blocks,
            unit=unit,
            mode=CacheMode(setup.mode),
            retention=BlockRetention(setup.interval),
            kernel_grid=setup.kernel_grid,
            block_bytes=layout.stride,
        )
        if is_marconi_auto(setup.retention) and setup.memory is not None:
            account.alpha = tune_block_alpha(trace, config, self.flops, chunk=setup.chunk).alpha
        kept = BlockRetention(setup.interval, block_order(setup.retention, account.alpha))
        self.cache = BlockStateCache(
            replace(config, retention=kept.bound(self.flops, layout.stride))
        )
        self.trace_block = trace.block_tokens
        self.states = frozenset(self.cache.state_groups)
        self.restored: dict[int, tuple[int, int]] = {}  # of requests that had to wait
        self.read: set[bytes] = set()
        account.page_bytes = account.checkpoint_bytes = layout.stride
        account.checkpoint_bytes *= max(1, len(self.states))
        hits = f"hits are whole units of {unit:,} tokens, in blocks of {self.block:,} tokens"
        account.assumptions = (hits, *account.assumptions[1:])

    def _count(self, trace: Requests, groups: int) -> int:
        setup = self.setup
        if setup.memory is not None:
            count = setup.memory // self.stride
            if count < 2:
                raise KdalabError(
                    f"a memory of {format_bytes(setup.memory)} holds {count} blocks of "
                    f"{format_bytes(self.stride)}; give it more, or use smaller blocks"
                )
            # Blocks that no request will ever fill change nothing, but take time to make.
            return count if count <= MAX_BLOCKS else min(count, self._fills(trace, groups))
        need = self._fills(trace, groups)
        if need > MAX_BLOCKS:
            raise KdalabError(
                f"unlimited memory would be over {MAX_BLOCKS:,} blocks here; give memory=..."
            )
        return need

    def _fills(self, trace: Requests, groups: int) -> int:
        """Blocks that the trace can ever fill."""
        setup, need = self.setup, 2
        for r in trace:
            blocks = -(-(r.input_tokens + r.output_tokens) // self.block)
            states = blocks if setup.mode == "all" or setup.interval != 0 else 4
            need += blocks + (min(blocks, states) + 3) * (groups - 1)
        return need

    def start(self, request: TraceRequest, alone: bool) -> BlockServed | None:
        """See ``RadixRun.start``."""
        cache, account, n = self.cache, self.account, request.input_tokens
        stride = self.stride
        key = PrefixKey.from_blocks(request.blocks, self.trace_block, n)
        found = cache.lookup(key)
        lease = cache.acquire(found)
        named = self._named()
        lost = 0
        reach = n + request.output_tokens if self.setup.arrivals else n
        while lease.boundary < reach:
            end = cache.chunk_end(lease, self.setup.chunk) if lease.boundary < n else reach
            step = cache.allocate(lease, end)
            if step is None:
                self.restored.setdefault(request.line, (found.restore, found.token_match))
                account.states_written += self._named() - named + lost
                cache.release(lease)
                if alone:
                    self._refuse(request)
                return None
            if step.lost:
                states = sum([block.group in self.states for block in step.lost])
                lost += states
                account.evicted_states += states
                account.evicted_state_bytes += states * stride
                account.evicted_kv_bytes += (len(step.lost) - states) * stride
            account.pages_written += sum([len(b) for b in step.kv_blocks.values()])
            lease = cache.advance(lease, end)
            held = cache.pool.n_held * stride  # cached blocks too
            if held > account.peak_bytes:
                account.peak_bytes = held
            cache.step_done()
        # A request that was turned back half-way does not count what it computed itself as a hit.
        restore, known = self.restored.pop(request.line, (found.restore, found.token_match))
        account.states_written += self._named() - named + lost
        if restore:
            account.reads += 1
            account.state_bytes_read += self.state_bytes
            self.read.add(bytes(found.handle.at(restore)))
        return BlockServed(request, restore, known, 0, lease)

    def finish(self, served: BlockServed) -> None:
        """The request is over: its blocks go back, cached ones to wait for their next hit."""
        assert served.lease is not None
        self.cache.release(served.lease)

    def usage(self) -> Usage:
        """Bytes of blocks by what they hold."""
        pool, stride = self.cache.pool, self.stride
        state = sum(pool.named[i] for i in self.states)
        kv = sum(pool.named) - state
        return Usage(kv * stride, state * stride, (pool.n_held - kv - state) * stride, 0)

    def close(self) -> None:
        """The last figures of the account."""
        usage = self.usage()
        account = self.account
        account.kv_bytes, account.state_bytes = usage.kv, usage.state
        account.states_read_at_least_once = len(self.read)
        # A checkpoint is one block in each state group. So far blocks were counted.
        groups = max(1, len(self.states))
        account.states_written = -(-account.states_written // groups)
        account.evicted_states = -(-account.evicted_states // groups)

    def check(self) -> None:
        """Every invariant of the cache."""
        self.cache.check()

    def _named(self) -> int:
        named = self.cache.pool.named
        return sum([named[i] for i in self.states])

    def _refuse(self, request: TraceRequest) -> None:
        raise KdalabError(
            f"the request on line {request.line:,} ({request.input_tokens:,} tokens in, "
            f"{request.output_tokens:,} out) does not fit {self.cache.config.n_blocks:,} blocks "
            f"of {self.block:,} tokens; give more memory"
        )
