"""What a machine can do, for the time account: numbers to edit, each with its source.

A preset is a data sheet times an assumption. The times that follow from it are for comparing
settings on one machine, not a promise of any machine's latency.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kdalab.errors import KdalabError


@dataclass(frozen=True, slots=True)
class Hardware:
    """Rates of one deployment; ``flops`` and bandwidths are for one device.

    Args:
        flops: peak dense FLOP/s at the precision of the large products.
        mfu: share of the peak that prefill reaches, 0 to 1.
        hbm: device memory, bytes/s; a checkpoint that is restored is read and written once.
        host: between device and host memory, one way, bytes/s.
        network: between machines, bytes/s.
        decode_s: seconds from one output token to the next; how long a request stays.
    """

    name: str
    devices: int
    flops: float
    mfu: float
    hbm: float
    host: float
    network: float
    decode_s: float
    source: str
    assumed: str

    @property
    def prefill_flops(self) -> float:
        """FLOP/s of prefill, all devices."""
        return self.devices * self.flops * self.mfu

    @property
    def restore_bytes(self) -> float:
        """Bytes/s of copying a checkpoint into an active slot: each byte is read and written."""
        return self.devices * self.hbm / 2

    @property
    def host_bytes(self) -> float:
        """Bytes/s from the host, all devices."""
        return self.devices * self.host

    @property
    def network_bytes(self) -> float:
        """Bytes/s between machines, all devices."""
        return self.devices * self.network

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, the sums over devices included."""
        names = ("prefill_flops", "restore_bytes", "host_bytes", "network_bytes")
        return {**asdict(self), **{name: getattr(self, name) for name in names}}


_ASSUMED = (
    "prefill reaches 40 % of the peak; one request is prefilled at a time; an output token takes "
    "20 ms; links reach 80 % of their rate, one link a device; restoring and loading do not "
    "overlap with prefill"
)
_H = {"mfu": 0.4, "host": 0.8 * 64e9, "network": 0.8 * 50e9, "decode_s": 0.02}

HARDWARE: dict[str, Hardware] = {
    h.name: h
    for h in (
        Hardware(
            "h100x8", 8, 989e12, hbm=3.35e12, **_H, assumed=_ASSUMED,
            source="NVIDIA H100 SXM data sheet: 989 TFLOP/s dense BF16, 3.35 TB/s, PCIe 5 x16; "
            "400 Gbit/s of network a device",
        ),
        Hardware(
            "h200x8", 8, 989e12, hbm=4.8e12, **_H, assumed=_ASSUMED,
            source="NVIDIA H200 SXM data sheet: 989 TFLOP/s dense BF16, 4.8 TB/s, PCIe 5 x16; "
            "400 Gbit/s of network a device",
        ),
        Hardware(
            "h200x16", 16, 989e12, hbm=4.8e12, **_H, assumed=_ASSUMED,
            source="two machines of 8 NVIDIA H200 SXM: 989 TFLOP/s dense BF16 and 4.8 TB/s each, "
            "PCIe 5 x16; 400 Gbit/s of network a device",
        ),
        Hardware(
            "b200x8", 8, 2250e12, hbm=8.0e12, **_H, assumed=_ASSUMED,
            source="NVIDIA B200 data sheet: 2,250 TFLOP/s dense BF16, 8 TB/s, PCIe 5 x16; "
            "400 Gbit/s of network a device",
        ),
    )
}  # fmt: skip


def hardware(name: str) -> Hardware:
    """The preset of that name.

    Raises:
        KdalabError: no such preset; lists the known ones.
    """
    if name not in HARDWARE:
        raise KdalabError(f"unknown hardware {name!r}; allowed: {', '.join(HARDWARE)}")
    return HARDWARE[name]
