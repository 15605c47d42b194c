"""The same state for other ranks and in other layouts: cut, joined and transposed, never computed.

A rank holds some heads of the recurrent state, and the channels of q, of k and of v that belong to
them: its conv row is ``q_r | k_r | v_r``, so every cut is made inside the three sub-blocks. The
latent KV serves all heads and is the same on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from kdalab.errors import KdalabError
from kdalab.spec import CONV_LAYOUTS, RECURRENT_LAYOUTS, ParallelLayout
from kdalab.transfer.bundle import Bundle
from kdalab.transfer.geometry import Geometry
from kdalab.transfer.refusal import Refusal, require
from kdalab_kernels import reslice_conv, reslice_states

KERNEL_LAYOUT = ("v_first", "time_first")
"""The layout that the ops know: head axis third from the end, channels last."""


def relayout(
    bundle: Bundle, recurrent_layout: str | None = None, conv_layout: str | None = None
) -> Bundle:
    """The same state with K or V first, and with the conv's channels or inputs first.

    The identity changes with it: a square state of the wrong layout looks right, so the layout is
    never left to be guessed.

    Raises:
        KdalabError: an unknown layout.
    """
    identity = bundle.identity
    state = recurrent_layout or identity.recurrent_layout
    conv = conv_layout or identity.conv_layout
    for name, value, allowed in (
        ("recurrent_layout", state, RECURRENT_LAYOUTS),
        ("conv_layout", conv, CONV_LAYOUTS),
    ):
        if value not in allowed:
            raise KdalabError(f"{name} {value!r}; use {' or '.join(allowed)}")
    if (state, conv) == (identity.recurrent_layout, identity.conv_layout):
        return bundle
    return bundle.changed(
        identity=replace(identity, recurrent_layout=state, conv_layout=conv),
        recurrent=_turned(bundle.recurrent, state != identity.recurrent_layout),
        conv=_turned(bundle.conv, conv != identity.conv_layout),
    )


def reslice(
    parts: Sequence[Bundle], tp_size: int, tp_rank: int, geometry: Geometry | None = None
) -> Bundle:
    """What rank ``tp_rank`` of ``tp_size`` holds, from the bundles of all ranks of another size.

    Args:
        parts: one bundle a source rank, in order; all of one state. Their layout is kept.
        geometry: of the model that they must be of. Where a cut falls depends on sizes that only
            the bundles name, so give it for bundles that others have written.

    Raises:
        BundleRefusedError: the parts are of different states, or their sizes not the model's; the
            field is named.
        KdalabError: a rank is missing or given twice, or heads or channels cannot be dealt evenly.
    """
    first = _checked(parts)
    for part in parts:
        if geometry is not None:
            require(geometry.refusals(part), f"the bundle of rank {part.parallel.tp_rank}")
    identity = first.identity
    target = ParallelLayout(tp_size, tp_rank, identity.parallel.pp_size, identity.parallel.pp_rank)
    plain = [relayout(p, *KERNEL_LAYOUT) for p in parts]
    try:
        recurrent = reslice_states([p.recurrent for p in plain], tp_size, tp_rank)
        conv = reslice_conv([p.conv for p in plain], first.channels, tp_size, tp_rank)
    except ValueError as error:
        raise KdalabError(
            f"{len(parts)} ranks to {tp_size}: {error}. Choose a number of ranks that divides the "
            "heads"
        ) from None
    cut = plain[0].changed(
        identity=replace(plain[0].identity, parallel=target), recurrent=recurrent, conv=conv
    )
    return relayout(cut, identity.recurrent_layout, identity.conv_layout)


def split(bundle: Bundle, tp_size: int) -> list[Bundle]:
    """The bundles of all ranks of ``tp_size``, from that of the whole model."""
    return [reslice([bundle], tp_size, rank) for rank in range(tp_size)]


def merge(parts: Sequence[Bundle]) -> Bundle:
    """The bundle of the whole model, from those of all ranks."""
    return reslice(parts, 1, 0)


def _checked(parts: Sequence[Bundle]) -> Bundle:
    """The first part, when all are the ranks of one state, in order.

    The replicated latent KV has to be equal on all of them: ranks that evicted different things
    would otherwise be joined without a word.
    """
    if not parts:
        raise KdalabError("no bundles; give one for every rank")
    first, size = parts[0], parts[0].parallel.tp_size
    ranks = [p.parallel.tp_rank for p in parts]
    if ranks != list(range(size)):
        raise KdalabError(
            f"bundles of ranks {ranks} of {size}; give those of ranks 0 to {size - 1}, in order"
        )
    for part in parts[1:]:
        here = replace(
            first.identity,
            parallel=replace(first.parallel, tp_rank=part.parallel.tp_rank),
        )
        found = list(part.refusals(here, first.prefix, first.page_tokens, first.checkpoint_dtype))
        if part.channels != first.channels:
            found.append(Refusal("channels", str(first.channels), str(part.channels)))
        elif not _same_bits(part.latent, first.latent):
            found.append(Refusal("latent", "rank 0's", f"rank {part.parallel.tp_rank}'s differs"))
        require(found, f"the bundle of rank {part.parallel.tp_rank}")
    return first


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    a, b = a.contiguous().view(-1), b.contiguous().view(-1)
    return a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def _turned(x: torch.Tensor, turn: bool) -> torch.Tensor:
    return x.transpose(-1, -2).contiguous() if turn else x
