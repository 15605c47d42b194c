"""Seconds that a request's prefill and its copies would take, by a model that is stated.

    seconds = FLOPs computed / FLOP/s  +  2 x bytes copied / bytes/s

A copy reads and writes, hence 2. Nothing else counts: no waiting, no launches, no scheduling. So
two ways of caching can be compared by it, and a deployment cannot be predicted.
"""

from __future__ import annotations

from dataclasses import dataclass

from kdalab.errors import KdalabError, shown

UTILISATION = 0.4
"""Share of a device's peak that prefill is taken to reach where only the device is named."""

LEAST, MOST = 1.0, 1e24
"""Rates that a deployment may have, all devices together; beyond them seconds would overflow."""


@dataclass(frozen=True, slots=True)
class Device:
    """Dense bf16 peak in FLOP/s and memory bandwidth in bytes/s, as its maker states them."""

    flops: float
    bandwidth: float


DEVICES: dict[str, Device] = {
    "a100-80gb-sxm": Device(312e12, 2.039e12),
    "h100-sxm": Device(989.4e12, 3.35e12),
    "h200-sxm": Device(989.4e12, 4.8e12),
    "b200": Device(2_250e12, 8.0e12),
    "mi300x": Device(1_307.4e12, 5.3e12),
}


@dataclass(frozen=True, slots=True)
class CostModel:
    """``flops``: FLOP/s that prefill reaches, all ranks together; ``bandwidth``: bytes/s of a
    copy on one rank, read and written bytes both counted.

    Raises:
        KdalabError: a rate below ``LEAST`` or above ``MOST``.
    """

    flops: float
    bandwidth: float
    name: str = "given rates"

    def __post_init__(self) -> None:
        for what, rate in (
            ("prefill, FLOP/s", self.flops),
            ("copies, bytes/s", self.bandwidth),
        ):
            number = isinstance(rate, int | float) and not isinstance(rate, bool)
            if not number or not LEAST <= rate <= MOST:
                raise KdalabError(
                    f"{what} = {shown(rate)}; use a number of {LEAST:g} to {MOST:g}, for example "
                    "4e14 FLOP/s or 3.35e12 bytes/s"
                )

    def seconds(self, flops: int, copied_bytes: int) -> float:
        """Time of so much work (FLOPs of the whole model, bytes of one rank)."""
        return flops / self.flops + 2 * copied_bytes / self.bandwidth

    def __str__(self) -> str:
        return (
            f"FLOPs / {self.flops / 1e12:,.4g} TFLOP/s + 2 x copied bytes / "
            f"{self.bandwidth / 1e12:.4g} TB/s ({self.name})"
        )


def cost_model(
    device: str = "h100-sxm",
    flops: float | None = None,
    bandwidth: float | None = None,
    tp_size: int = 1,
) -> CostModel:
    """Rates of ``tp_size`` devices at 40 % of their peak; ``flops`` and ``bandwidth`` are rates
    that one device really reaches, and replace the device's.

    Raises:
        KdalabError: an unknown device; ranks that cannot be; a rate below ``LEAST`` or above
            ``MOST``.
    """
    if device not in DEVICES:
        raise KdalabError(f"unknown device {device!r}; known: {', '.join(DEVICES)}")
    if type(tp_size) is not int or not 1 <= tp_size <= 2**20:
        raise KdalabError(f"{shown(tp_size)} ranks; use 1 to {2**20:,}")
    known = DEVICES[device]
    each = flops if flops is not None else UTILISATION * known.flops
    speed = bandwidth if bandwidth is not None else known.bandwidth
    told = [what for what, x in (("FLOP/s", flops), ("bytes/s", bandwidth)) if x is not None]
    name = f"{tp_size} x {device}" + (f", {' and '.join(told)} as given" if told else "")
    if flops is None:
        name += f", {UTILISATION:.0%} of the FLOP/s peak"
    return CostModel(each * tp_size, speed, name)
