"""``replay_setup(trace, setup)``: one trace, one setup, one account.

Without arrivals, requests run one after the other. With them there is a clock. The machine
prefills one request at a time, in order of arrival; a request that has been prefilled decodes
beside the others until its last output token, and until then its locks, its pages and its active
state stay. A request for which there is no room waits for the next one to end.
"""

from __future__ import annotations

import gc
import heapq
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from kdalab.cache import PrefillFlops, parse_placement
from kdalab.errors import KdalabError
from kdalab.lab.account import Account, Timeline, Times, Usage, assumptions
from kdalab.lab.block_run import BlockRun, BlockServed
from kdalab.lab.marconi import tune_alpha
from kdalab.lab.policies import PolicyError, is_marconi_auto
from kdalab.lab.radix_run import RadixRun, Served
from kdalab.lab.request import Requests, TraceRequest, report_of
from kdalab.lab.setup import Setup
from kdalab.spec import state_sizes

Done = Served | BlockServed


class Run(Protocol):
    """A cache that serves requests; see ``RadixRun``. ``state_bytes``: what restoring one reads."""

    flops: PrefillFlops
    state_bytes: int

    def start(self, request: TraceRequest, alone: bool) -> Done | None: ...
    def finish(self, served: Done) -> None: ...
    def usage(self) -> Usage: ...
    def close(self) -> None: ...
    def check(self) -> None: ...


def replay_setup(
    trace: Requests,
    setup: Setup,
    on_request: Callable[[int], None] | None = None,
    check_every: int = 0,
) -> Account:
    """Replay ``trace`` under ``setup``.

    Args:
        trace: read once; once more for ``retention=marconi`` and for blocks without a limit.
        on_request: told the number of requests done, now and then.
        check_every: prove every invariant after every so many requests; 0 for never.

    Raises:
        KdalabError: one request does not fit the memory (named); settings that this trace's
            blocks rule out; a trace that cannot be read; a policy that went wrong.
        InvariantError: a check failed.
    """
    begin = time.perf_counter()
    replay = _Replay(trace, setup)
    with without_garbage_collection(), _answering_for(setup.policy):
        for done, request in enumerate(trace, 1):
            replay.serve(request)
            if check_every and done % check_every == 0:
                replay.run.check()
            if on_request is not None and done % 256 == 0:
                on_request(done)
        account = replay.close()
    if check_every:
        replay.run.check()
    account.report = report_of(trace)
    account.seconds = time.perf_counter() - begin
    return account


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """The tree has no garbage in cycles: what is evicted goes by its reference count. The
    collector would walk all of it again and again, a third of the time of a replay."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _answering_for(policy: str | None) -> Iterator[None]:
    """A cache that breaks under a policy of one's own: the policy can reach into the nodes."""
    try:
        yield
    except KdalabError:
        raise
    except Exception as error:
        if policy is None:
            raise
        raise PolicyError(
            f"{policy}: the cache broke under this policy ({type(error).__name__}: {error}); a "
            "policy only reads the nodes that it is given"
        ) from error


class _Replay:
    """One replay under way, and its clock. Seconds."""

    def __init__(self, trace: Requests, setup: Setup) -> None:
        self.setup, self.rates = setup, setup.rates
        self.account = Account(trace.name, str(setup), setup.spec.name, trace.block_tokens, 0, 0)
        self.account.assumptions = assumptions(setup, trace.block_tokens)
        self.run = make_run(trace, setup, self.account)
        self.side = _DecodeSide(trace, setup) if setup.pd != "off" else None
        self.timeline = Timeline()
        self.running: list[tuple[float, int, Done]] = []
        self.machine_free = self.last_end = 0.0
        self.first_arrival: float | None = None
        self.ttft, self.queue = array("d"), array("d")

    def serve(self, request: TraceRequest) -> None:
        """One request, to the end of its prefill; with arrivals it stays until it is over."""
        account = self.account
        if not self.setup.arrivals:
            served = self.run.start(request, alone=True)
            assert served is not None
            self._add(served)
            self.ttft.append(self._service(served, 0.0))
            self.run.finish(served)
            at = request.timestamp_ms / 1000.0
        else:
            at = self._serve_by_the_clock(request)
        if self.timeline.wants(account.requests):
            self.timeline.add(at, account.requests, self.run.usage())

    def _serve_by_the_clock(self, request: TraceRequest) -> float:
        account, running = self.account, self.running
        arrival = request.timestamp_ms / 1000.0 / self.setup.speed
        if self.first_arrival is None:
            self.first_arrival = arrival
        now = max(arrival, self.machine_free)
        waited = False
        while True:
            while running and running[0][0] <= now:
                self.run.finish(heapq.heappop(running)[2])
            served = self.run.start(request, alone=not running)
            if served is not None:
                break
            now, waited = running[0][0], True
        account.waited += waited
        self._add(served)
        self.queue.append(now - arrival)
        ready = now + self._service(served, now)
        self.ttft.append(ready - arrival)
        end = ready + self.rates.decode_s * max(0, request.output_tokens - 1)
        self.last_end = max(self.last_end, end)
        heapq.heappush(running, (end, account.requests, served))
        account.peak_in_flight = max(account.peak_in_flight, len(running))
        return now

    def _add(self, served: Done) -> None:
        account, n = self.account, served.request.input_tokens
        account.requests += 1
        account.input_tokens += n
        account.output_tokens += served.request.output_tokens
        account.hit_tokens += served.restore
        account.known_tokens += served.known
        between = self.run.flops.between
        saved = between(0, served.restore)
        account.flops += between(0, n)
        account.flops_saved += saved
        if served.known > served.restore:
            account.replayed_tokens += served.known - served.restore
            account.flops_replayed += between(0, served.known) - saved

    def _service(self, served: Done, now: float) -> float:
        """Seconds from the start of the work to the first token; moves the machine's clock."""
        rates, restore = self.rates, served.restore
        work = self.run.flops.between(restore, served.request.input_tokens)
        took = work / rates.prefill_flops + served.loaded_bytes / rates.host_bytes
        if restore:
            took += self.run.state_bytes / rates.restore_bytes
        self.account.busy += took
        self.machine_free = now + took
        if self.side is not None:
            took += self.side.serve(served.request, now + took, self.account)
        return took

    def close(self) -> Account:
        """Let the last requests end; the account as it is then."""
        account = self.account
        self.run.close()
        account.over_time = tuple(self.timeline.samples)
        while self.running:
            self.run.finish(heapq.heappop(self.running)[2])
        account.ttft, account.queue = Times.of(self.ttft), Times.of(self.queue)
        if self.setup.arrivals:
            begin = self.first_arrival or 0.0
            account.prefill_span = self.machine_free - begin
            account.makespan = self.last_end - begin
        else:
            account.prefill_span = account.makespan = account.busy
        return account


def make_run(trace: Requests, setup: Setup, account: Account) -> Run:
    """The cache of a setup, empty."""
    if setup.cache == "block":
        return BlockRun(setup, trace, account)  # type: ignore[return-value]
    if is_marconi_auto(setup.retention) and setup.memory is not None:
        placement = parse_placement(setup.checkpoints)
        account.alpha = tune_alpha(trace, setup.spec, placement, setup.memory).alpha
    return RadixRun(setup, trace.block_tokens, account, account.alpha)  # type: ignore[return-value]


class _DecodeSide:
    """The decode machines of prefill-decode disaggregation, with a cache of their own.

    With the state shipped, KV that is known there need not travel (SGLang's ``match_kv_cache``)
    and one state does, whatever the prompt's length. Without, KV alone starts nothing: the KDA
    layers need the tokens' inputs again from the side's own last checkpoint on.
    """

    def __init__(self, trace: Requests, setup: Setup) -> None:
        self.ships, self.rates = setup.pd == "ship", setup.rates
        side = replace(setup, pd="off", arrivals=False, policy=None, checkpoints="leaf", host=0)
        self.account = Account(trace.name, "", setup.model, trace.block_tokens, 0, 0)
        self.run = RadixRun(side, trace.block_tokens, self.account)
        sizes = state_sizes(setup.spec)
        self.token_bytes, self.state_bytes = sizes.latent_bytes_per_token, sizes.checkpoint_bytes
        self.queues, self.free = setup.arrivals, 0.0

    def serve(self, request: TraceRequest, now: float, account: Account) -> float:
        """Seconds until it can decode; fills in what was sent or computed."""
        served = self.run.start(request, alone=True)
        assert served is not None
        self.run.finish(served)
        if self.ships:
            kv = (request.input_tokens - served.known) * self.token_bytes
            account.sent_kv_bytes += kv
            account.sent_state_bytes += self.state_bytes
            return (kv + self.state_bytes) / self.rates.network_bytes
        work = self.run.flops.between(served.restore, request.input_tokens)
        account.decode_side_flops += work
        account.decode_side_restored += served.restore
        self.free = (max(self.free, now) if self.queues else now) + work / self.rates.prefill_flops
        return self.free - now
