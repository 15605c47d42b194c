"""Every kernel with one set of compile-time arguments at K = V = 128, for checks without a GPU.

``triton.compile(source(spec), target=GPUTarget(...), options=...)`` builds a kernel for a card that
is not there; that needs a process without ``TRITON_INTERPRET``.
"""

import importlib
import pkgutil
from typing import Any, NamedTuple

import kdalab_kernels.triton_path as package


class CompileSpec(NamedTuple):
    """What a launch would give the compiler.

    Attributes:
        name: unique among the specs.
        kernel: the ``@triton.jit`` function.
        signature: argument name to type (``"*bf16"``, ``"i32"``, ``"fp32"``; ``"constexpr"`` for
            the names in constants), in the order of the kernel's parameters.
        constants: argument name to value.
        num_warps, num_stages: as the launch chooses them on an NVIDIA card.
        hip: what it chooses otherwise on an AMD card: constants, ``num_warps`` or ``num_stages``.
    """

    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    num_warps: int
    num_stages: int
    hip: dict[str, Any]

    def on(self, backend: str) -> "CompileSpec":
        """As the launch on a card of this backend, ``cuda`` or ``hip``, has it."""
        if backend != "hip":
            return self
        own = dict(self.hip)
        launch = {name: own.pop(name) for name in ("num_warps", "num_stages") if name in own}
        return self._replace(constants={**self.constants, **own}, **launch)


def spec(
    name: str,
    kernel: Any,
    types: dict[str, str],
    constants: dict[str, Any],
    num_warps: int = 4,
    num_stages: int = 2,
    hip: dict[str, Any] | None = None,
) -> CompileSpec:
    """A spec whose signature is put into the kernel's own order; ValueError on a missing name."""
    given = {**types, **dict.fromkeys(constants, "constexpr")}
    names = kernel.arg_names
    if set(names) != set(given):
        raise ValueError(f"{name}: arguments {sorted(set(names) ^ set(given))} do not match")
    signature = {n: given[n] for n in names}
    return CompileSpec(name, kernel, signature, constants, num_warps, num_stages, hip or {})


def source(spec: CompileSpec) -> Any:
    """The compiler's input: pointers are taken as aligned to 16 bytes, as torch allocates them."""
    from triton.compiler import ASTSource

    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, kind in enumerate(spec.signature.values())
        if kind.startswith("*")
    }
    return ASTSource(spec.kernel, spec.signature, spec.constants, aligned)


def compile_specs() -> list[CompileSpec]:
    """The specs of every file of the package that has a function ``SPECS()``."""
    found: list[CompileSpec] = []
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if module.name != __name__:
            specs = getattr(importlib.import_module(module.name), "SPECS", None)
            found += specs() if specs is not None else []
    return found
