"""Seconds that a request's prefill and its copies would take, by a model that is stated.

    seconds = FLOPs computed / FLOP/s  +  2 x bytes copied / bytes/s

A copy reads and writes, hence 2. Nothing else counts: no waiting, no launches, no scheduling. So
two ways of caching can be compared by it, and a deployment cannot be predicted.
"""

from __future__ import annotations

from dataclasses import dataclass

from kdalab.errors import KdalabError

UTILISATION = 0.4
"""Share of a device's peak that prefill is taken to reach where only the device is named."""


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
        KdalabError: a rate that is not above 0.
    """

    flops: float
    bandwidth: float
    name: str = "given rates"

    def __post_init__(self) -> None:
        if not (self.flops > 0 and self.bandwidth > 0):
            raise KdalabError(
                f"prefill of {self.flops:g} FLOP/s and copies of {self.bandwidth:g} bytes/s; both "
                "must be above 0"
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
        KdalabError: an unknown device; a rate that is not above 0.
    """
    if device not in DEVICES:
        raise KdalabError(f"unknown device {device!r}; known: {', '.join(DEVICES)}")
    known = DEVICES[device]
    each = flops if flops is not None else UTILISATION * known.flops
    speed = bandwidth if bandwidth is not None else known.bandwidth
    told = [what for what, x in (("FLOP/s", flops), ("bytes/s", bandwidth)) if x is not None]
    name = f"{tp_size} x {device}" + (f", {' and '.join(told)} as given" if told else "")
    if flops is None:
        name += f", {UTILISATION:.0%} of the FLOP/s peak"
    return CostModel(each * tp_size, speed, name)
