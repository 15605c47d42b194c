"""One checkpoint rounded to INT8: the error by channel, after the restore, and as decoding goes on.

A restore through the engine with ``checkpoint_dtype="int8"`` is compared with a run from zero; so
is a run that rounds after every step (the engine's fault ``quantise_in_recurrence``). Beside them
the model decodes the same tokens from the exact state, from the rounded one, and rounding at every
token, so that errors can be followed for as many tokens as one likes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch

from kdalab.cache.placement import Every
from kdalab.engine import Engine, Faults
from kdalab.errors import KdalabError
from kdalab.lessons.cold import cold_run, max_difference
from kdalab.lessons.joint import JOINT
from kdalab.lessons.player import lesson_model
from kdalab.lessons.scenario import LESSON_CONFIG
from kdalab.memory.int8 import FLOOR, QMAX, dequantise, int8_slot_bytes, quantise

BOUNDARY = 128
"""The checkpoint's boundary, in tokens."""

MOST_TOKENS = 64
ENGINE_TOKENS = 3
SCALES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Served:
    """One request of the engine against a run from zero: max |difference| of the logits of every
    prompt token after the boundary, as their median and maximum; ``wrong`` is the place of the
    first other choice in the output, or None."""

    median: float
    worst: float
    wrong: int | None


@dataclass(frozen=True, slots=True)
class Int8Run:
    """A checkpoint and its rounding.

    Shapes: ``state``, ``rounded`` [KDA layer, head, V, K]; ``largest``, ``error`` [KDA layer, head,
    K]: over V; ``half_step`` [KDA layer, head, K]: half of a channel's scale, the bound of its
    error. ``once`` and ``every`` [token]: max |difference| of the logits after 1, 2, ... decoded
    tokens; ``state_once`` and ``state_every``: of the recurrent states. ``served`` is what the
    engine's requests gave, by "once" and "every" (if asked for). ``conv_equal``: the conv state
    came back bit for bit. Sizes in bytes.
    """

    state: np.ndarray
    rounded: np.ndarray
    largest: np.ndarray
    error: np.ndarray
    half_step: np.ndarray
    once: tuple[float, ...]
    every: tuple[float, ...]
    state_once: tuple[float, ...]
    state_every: tuple[float, ...]
    served: dict[str, Served]
    conv_equal: bool
    recurrent_bytes: int
    conv_bytes: int
    int8_bytes: int
    margin: float


@dataclass(frozen=True, slots=True)
class ScaleLine:
    """One dtype of the scale: error over channel maximum, for channels made smaller and smaller."""

    dtype: str
    largest: tuple[float, ...]
    error: tuple[float, ...]


_PLAYING = threading.Lock()


def play_int8(tokens: int, every_step: bool = False) -> Int8Run:
    """Round the checkpoint at 128 tokens of a prompt, restore it, and decode ``tokens`` tokens.

    ``every_step`` also serves the request with the fault that rounds inside the recurrence.

    Raises:
        KdalabError: fewer than 1 or more than 64 tokens.
    """
    if not 1 <= tokens <= MOST_TOKENS:
        raise KdalabError(f"{tokens} decoded tokens; use 1 to {MOST_TOKENS}")
    with _PLAYING:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return _play(tokens, every_step)
        finally:
            torch.set_num_threads(threads)


def _play(tokens: int, every_step: bool) -> Int8Run:
    model = lesson_model()
    recurrent, conv, _ = _checkpoint()
    q, scale = quantise(recurrent)
    rounded = dequantise(q, scale, recurrent.dtype)
    served = {"once": _served(False)} | ({"every": _served(True)} if every_step else {})
    curves, margin = _decoded(tokens)
    return Int8Run(
        recurrent.numpy(), rounded.numpy(), recurrent.abs().amax(-2).numpy(),
        (rounded - recurrent).abs().amax(-2).numpy(), (scale[..., 0, :] / 2).numpy(),
        *curves, served, _conv_comes_back(), recurrent.nbytes, conv.nbytes,
        int8_slot_bytes(model.recurrent_shape, model.conv_shape, model.dtype), margin,
    )  # fmt: skip


def _prompt() -> tuple[int, ...]:
    return tuple(JOINT["fan-out"][1].encode())


@lru_cache(maxsize=1)
def _checkpoint() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(recurrent, conv, latent) after ``BOUNDARY`` tokens of the prompt."""
    return lesson_model().states(_prompt()[:BOUNDARY])


@lru_cache(maxsize=1)
def _from_zero() -> tuple[torch.Tensor, tuple[int, ...]]:
    """Logits of the prompt and what follows it, and the tokens chosen."""
    run = cold_run(lesson_model(), _prompt(), ENGINE_TOKENS)
    return run.logits, run.generated


def _engine(dtype: str, fault: bool) -> tuple[list[torch.Tensor], tuple[int, ...]]:
    """The prompt's beginning is cached, then the prompt comes: its logits and choices."""
    config = replace(LESSON_CONFIG, placement=Every(BOUNDARY), checkpoint_dtype=dtype)
    engine = Engine(lesson_model(), config)
    engine.submit(_prompt()[:BOUNDARY], 1, "A")
    engine.run()
    engine.config = replace(config, faults=Faults(quantise_in_recurrence=fault))
    request = engine.submit(_prompt(), ENGINE_TOKENS, "B")
    engine.run()
    assert request.restore == BOUNDARY
    return request.logits, tuple(request.generated)


@lru_cache(maxsize=2)
def _served(fault: bool) -> Served:
    logits, generated = _engine("native" if fault else "int8", fault)
    true, choices = _from_zero()
    pairs = zip(generated, choices, strict=True)
    wrong = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    own = torch.stack(logits[: len(_prompt()) - BOUNDARY])
    each = (own.double() - true[BOUNDARY : len(_prompt())].double()).abs().amax(-1)
    return Served(float(each.median()), float(each.max()), wrong)


@lru_cache(maxsize=1)
def _conv_comes_back() -> bool:
    """Store the state in the INT8 pool and load it: is the conv state the same, bit for bit?"""
    from kdalab.memory import ActivePool, Int8CheckpointPool

    model = lesson_model()
    recurrent, conv, _ = _checkpoint()
    active = ActivePool(2, model.recurrent_shape, model.conv_shape, model.dtype)
    pool = Int8CheckpointPool(1, model.recurrent_shape, model.conv_shape, model.dtype)
    first, second = (active.slots.allocate(name)[0] for name in ("A", "B"))
    active.write(first, recurrent, conv, "A")
    pool.load(pool.store(active, first, BOUNDARY, "A"), active, second, "B")
    return torch.equal(active.read(second)[1], conv)


Curves = tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...], tuple[float, ...]]


@lru_cache(maxsize=4)
def _decoded(tokens: int) -> tuple[Curves, float]:
    """Decode the prompt's own next tokens from three states in one batch; the exact run's likeliest
    token is fed to all three when the prompt ends."""
    model, prompt = lesson_model(), _prompt()
    recurrent, conv, latent = _checkpoint()
    rounded = dequantise(*quantise(recurrent), recurrent.dtype)
    states = torch.stack([recurrent, rounded, rounded])
    convs, latents = conv.expand(3, *conv.shape), [latent] * 3
    logit_errors: list[tuple[float, float]] = []
    state_errors: list[tuple[float, float]] = []
    gaps, token = [], prompt[BOUNDARY]
    for i in range(tokens):
        at = [BOUNDARY + i] * 3
        out = model.decode(torch.tensor([token] * 3), at, states, convs, latents)
        states, convs = out.recurrent.clone(), out.conv
        states[2] = dequantise(*quantise(states[2]), states.dtype)
        latents = [torch.cat([x, n[:, None]], 1) for x, n in zip(latents, out.latent, strict=True)]
        logit_errors.append(_against_first(out.logits))
        state_errors.append(_against_first(states))
        top = out.logits[0].topk(2).values
        gaps.append(float(top[0] - top[1]))
        place = BOUNDARY + i + 1
        token = prompt[place] if place < len(prompt) else int(out.logits[0].argmax())
    logits, kept = zip(*logit_errors, strict=True), zip(*state_errors, strict=True)
    return (*logits, *kept), float(np.median(gaps))  # type: ignore[return-value]


def _against_first(rows: torch.Tensor) -> tuple[float, float]:
    return max_difference(rows[1], rows[0]), max_difference(rows[2], rows[0])


@lru_cache(maxsize=1)
def scale_lines() -> tuple[ScaleLine, ...]:
    """The checkpoint's own channels, made smaller by powers of ten, with scales of three dtypes."""
    recurrent = _checkpoint()[0]
    lines = []
    for name, dtype in SCALES.items():
        largest, errors = [], []
        for exponent in np.arange(0, 8.01, 0.25):
            small = recurrent / recurrent.abs().amax(-2, keepdim=True) * float(10.0**-exponent)
            back = rounded_with(small, dtype)
            largest.append(float(10.0**-exponent))
            errors.append(float((back - small).abs().max() / small.abs().max()))
        lines.append(ScaleLine(name, tuple(largest), tuple(errors)))
    return tuple(lines)


def rounded_with(state: torch.Tensor, scale_dtype: torch.dtype) -> torch.Tensor:
    """``dequantise(quantise(state))`` with a scale of any dtype, also one that ``quantise``
    refuses: there the scale of a small channel becomes 0, and the channel reads back as 0."""
    scale = (state.abs().amax(-2, keepdim=True).clamp_min(FLOOR) / QMAX).to(scale_dtype).float()
    q = torch.round(state / scale).nan_to_num(0.0).clamp_(-QMAX, QMAX)
    return q * scale


def shrunk(state: np.ndarray, largest: float) -> tuple[np.ndarray, np.ndarray]:
    """``state`` [V, K] scaled so that its largest |value| is ``largest``, and what comes back of it
    when the scales are stored in fp16."""
    small = torch.from_numpy(state * (largest / np.abs(state).max()))
    return small.numpy(), rounded_with(small, torch.float16).numpy()
