"""A gate against moves: while somebody holds it, every slot stays where it is.

Whoever reads or writes by address needs it: a copy to the host, or a transfer to another process
that has sent the address of a state and cannot take it back. A hold says nothing about contents:
locks keep those.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from kdalab.errors import KdalabError, shown


class Hold:
    """One holder's claim; release it once, or use it as a context manager."""

    def __init__(self, gate: MoveGate, who: str) -> None:
        self.who = who
        self._gate: MoveGate | None = gate

    @property
    def is_held(self) -> bool:
        """True until it is released."""
        return self._gate is not None

    def release(self) -> None:
        """Let slots move again, unless somebody else holds the gate.

        Raises:
            KdalabError: it has been released before.
        """
        if self._gate is None:
            raise KdalabError(f"the hold of {self.who} was released already")
        gate, self._gate = self._gate, None
        gate._drop(self)

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_held:
            self.release()


class MoveGate:
    """Any number of holds; nothing moves while there is one.

    Args:
        on_open: called when the last hold is released.
    """

    def __init__(self, on_open: Callable[[], object] | None = None) -> None:
        self.on_open = on_open
        self._holds: list[Hold] = []

    @property
    def is_held(self) -> bool:
        """True while anybody holds it."""
        return bool(self._holds)

    @property
    def holders(self) -> tuple[str, ...]:
        """Who holds it, oldest first."""
        return tuple(hold.who for hold in self._holds)

    def hold(self, who: str) -> Hold:
        """Keep everything where it is until the hold is released."""
        if not isinstance(who, str) or not who:
            raise KdalabError(f"a hold needs the name of who holds it, not {shown(who)}")
        self._holds.append(Hold(self, who))
        return self._holds[-1]

    def _drop(self, hold: Hold) -> None:
        self._holds.remove(hold)
        if not self._holds and self.on_open is not None:
            self.on_open()
