"""The one place where an invariant can be switched off, for the page that shows what breaks."""

from __future__ import annotations

from dataclasses import dataclass, fields

from kdalab.errors import KdalabError, shown


@dataclass(frozen=True, slots=True)
class Faults:
    """All off in every engine that does not ask for them by name.

    ``skip_replay``: trust the token match. The latent KV up to the match is there, but the
    recurrent and conv state stay at the older restore point: kinds of different boundaries are
    mixed.

    ``drop_conv``: restore the recurrent state without the conv state, as if a state were one
    tensor.

    ``quantise_in_recurrence``: round the recurrent state to INT8 and back after every cell and
    every decoded token, not once a snapshot. Each step then rounds what the last one rounded.

    ``share_checkpoint``: no copy on write. Every request that hits a checkpoint reads and writes
    one state in common, as if it wrote into the checkpoint itself (see ``engine.shared_state``).

    ``keep_rejected``: after a verify step with a wrong draft, commit the state after the last
    drafted token, which has seen tokens that are not in the text.
    """

    skip_replay: bool = False
    drop_conv: bool = False
    quantise_in_recurrence: bool = False
    share_checkpoint: bool = False
    keep_rejected: bool = False

    def __post_init__(self) -> None:
        for f in fields(self):
            if type(getattr(self, f.name)) is not bool:
                raise KdalabError(
                    f"fault {f.name} = {shown(getattr(self, f.name))}; use True or False"
                )

    @classmethod
    def named(cls, names: list[str]) -> Faults:
        """``["skip_replay"]`` -> those switched on; an unknown name lists the known ones."""
        known = [f.name for f in fields(cls)]
        if isinstance(names, str) or not all(isinstance(n, str) for n in names):
            raise KdalabError(f"faults are a list of names; known: {', '.join(known)}")
        unknown = [n for n in names if n not in known]
        if unknown:
            raise KdalabError(f"unknown fault {shown(unknown[0])}; known: {', '.join(known)}")
        return cls(**dict.fromkeys(names, True))

    @property
    def active(self) -> tuple[str, ...]:
        """Names of the faults that are on."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name))
