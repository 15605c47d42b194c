"""Every Triton kernel built for cards that are not there, and what the compiler made of it.

The work is done by processes of their own (``python -m kdalab.bench.compile``): a kernel is made
for a card or for the interpreter when its file is imported, so ``TRITON_INTERPRET`` must be unset
there, whatever the caller's environment says.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kdalab.errors import KdalabError

SPECS = "kdalab_kernels.triton_path.compile_specs:compile_specs"
CLEAN = ("sm_90", "gfx942")  # where a spill, or too much shared memory, counts as a failure


class Target(NamedTuple):
    """One architecture as Triton names it, and the shared memory that one block may have."""

    backend: str
    arch: int | str
    lanes: int  # threads of a warp
    shared_limit: int  # bytes


TARGETS = {
    "sm_80": Target("cuda", 80, 32, 163 << 10),
    "sm_90": Target("cuda", 90, 32, 227 << 10),
    "sm_100": Target("cuda", 100, 32, 227 << 10),
    "gfx942": Target("hip", "gfx942", 64, 64 << 10),
}


@dataclass(frozen=True)
class Built:
    """One kernel on one target.

    Attributes:
        registers: 32-bit registers of a thread (on AMD: vector registers).
        spill_bytes: local memory of a thread; above 0 registers did not suffice.
        shared_bytes: shared memory (AMD: LDS) of a block.
        error: why it did not compile, else "".
    """

    kernel: str
    target: str
    warps: int
    stages: int
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    error: str = ""

    @property
    def problem(self) -> str:
        """Why this fails the check, or "". Elsewhere spills and limits are only printed."""
        if self.error:
            return self.error
        if self.target not in CLEAN:
            return ""
        found = []
        if self.spill_bytes:
            found.append(f"{self.spill_bytes} bytes of a thread's registers are spilled")
        if self.over_limit:
            found.append(
                f"{self.shared_bytes} bytes of shared memory, {self.target} has {self.limit}"
            )
        return "; ".join(found)

    @property
    def limit(self) -> int:
        return TARGETS[self.target].shared_limit

    @property
    def over_limit(self) -> bool:
        return self.shared_bytes > self.limit


class Compiled(NamedTuple):
    """The version of Triton that compiled, and every kernel on every target."""

    triton: str
    rows: list[Built]


def compile_kernels(
    targets: Sequence[str] = tuple(TARGETS),
    *,
    jobs: int | None = None,
    specs: str = SPECS,
    path: Iterable[Path] = (),
) -> Compiled:
    """Compile every kernel for every target.

    Args:
        targets: names of :data:`TARGETS`.
        jobs: processes at a time; as many as there are processors when None.
        specs: ``module:function`` that lists the specs; the module's ``source`` turns one into
            the compiler's input.
        path: folders to look in before all others, e.g. one with another version of Triton.

    Raises:
        KdalabError: an unknown target, no Triton here, or a process that died.
    """
    for target in targets:
        if target not in TARGETS:
            raise KdalabError(f"target {target!r}: there are {', '.join(TARGETS)}")
    jobs = jobs or os.cpu_count() or 1
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    inherited = [p for p in sys.path if p]  # as this process finds its modules
    env["PYTHONPATH"] = os.pathsep.join([*map(str, path), *inherited])
    with tempfile.TemporaryDirectory(prefix="kdalab-triton-") as cache:
        env["TRITON_CACHE_DIR"] = cache  # nothing old is counted as compiled
        running = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, specs, ",".join(targets), str(i), str(jobs)],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for i in range(jobs)
        ]
        outputs = [process.communicate() for process in running]
    rows: list[Built] = []
    version = ""
    for process, (out, err) in zip(running, outputs, strict=True):
        if process.returncode:
            last = (err.strip().splitlines() or ["no message"])[-1]
            raise KdalabError(f"compiling failed (exit {process.returncode}): {last}")
        version, *lines = out.splitlines()
        rows += [Built(**json.loads(line)) for line in lines]
    return Compiled(version, sorted(rows, key=lambda r: (r.kernel, list(TARGETS).index(r.target))))


def main(argv: Sequence[str]) -> None:
    """A process's part: print Triton's version, then a line of JSON for every kernel of its own."""
    specs, targets, part, parts = argv
    # Lines printed while compiling are not rows: they go to the other stream.
    out, sys.stdout = sys.stdout, sys.stderr
    import triton

    print(triton.__version__, file=out)
    module, function = specs.split(":")
    listing = importlib.import_module(module)
    pairs = [(spec, t) for spec in getattr(listing, function)() for t in targets.split(",")]
    for spec, target in pairs[int(part) :: int(parts)]:
        built = _build(spec, listing.source, target)
        print(json.dumps(asdict(built)), file=out, flush=True)


def _build(spec: Any, source: Callable[[Any], Any], name: str) -> Built:
    import triton
    from triton.backends.compiler import GPUTarget

    target = TARGETS[name]
    spec = spec.on(target.backend)
    warps, stages = spec.num_warps, spec.num_stages
    try:
        kernel = triton.compile(
            source(spec),
            target=GPUTarget(target.backend, target.arch, target.lanes),
            options={"num_warps": warps, "num_stages": stages},
        )
        shared = int(kernel.metadata.shared)
        if target.backend == "cuda":
            registers, spills = _cubin_usage(kernel.asm["cubin"])
        else:
            registers, spills = _amdgcn_usage(kernel.asm["amdgcn"])
    except Exception as error:  # a compiler fails in many ways; each is a row, not the end
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return Built(spec.name, name, warps, stages, error=text[:300])
    return Built(spec.name, name, warps, stages, registers, spills, shared)


def _cubin_usage(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of local memory) of a thread, from the tool that ships with Triton."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True)
    found = {k: int(v) for k, v in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", done.stdout)}
    if len(found) < 3:
        raise RuntimeError(f"cuobjdump says nothing of registers: {done.stderr or done.stdout}")
    return found["REG"], found["STACK"] + found["LOCAL"]


def _amdgcn_usage(text: str) -> tuple[int, int]:
    """(vector registers, spilled bytes) of a thread, from the metadata below the code."""
    found = {k: int(v) for k, v in re.findall(r"\.(vgpr_(?:spill_)?count):\s+(\d+)", text)}
    return found["vgpr_count"], 4 * found["vgpr_spill_count"]


if __name__ == "__main__":
    main(sys.argv[1:])
