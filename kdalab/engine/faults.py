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

    ``skip_clear``: a request without a hit begins in its slot as the last owner left it.

    ``alias_snapshot``: a snapshot without a copy. The checkpoint and its maker's slot are one
    memory, so whoever hits it reads what the maker has become (see ``engine.shared_state``).

    ``free_locked``: a checkpoint that a request is about to copy is given to another one's
    snapshot; the copy reads the other's state (see ``engine.shared_state``).

    ``ignore_images``: the key of a prompt has placeholders where the images are, so the same text
    with another image is the same prefix.

    ``start_early``: decode begins when the state has come, whether all latent KV is here or not.

    ``move_held``: compaction moves slots while a transfer holds their addresses (unified memory).

    ``read_unwritten``: what a step will cache can be hit in that very step (``BlockEngine``); a
    batch has no order, so the reader comes first.
    """

    skip_replay: bool = False
    drop_conv: bool = False
    quantise_in_recurrence: bool = False
    share_checkpoint: bool = False
    keep_rejected: bool = False
    skip_clear: bool = False
    alias_snapshot: bool = False
    free_locked: bool = False
    ignore_images: bool = False
    start_early: bool = False
    move_held: bool = False
    read_unwritten: bool = False

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
