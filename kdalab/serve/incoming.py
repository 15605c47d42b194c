"""One attempt to receive a state: every piece is judged, then handed to the engine.

A piece is taken only if it is of this transfer, this identity, this text and this boundary.
Pieces may come twice or out of order; they are written where they belong. The request decodes
only when every token's latent KV and the state of the same boundary are in place.
"""

from __future__ import annotations

from kdalab.engine import Engine, Request
from kdalab.engine.receiving import land_latent, land_state
from kdalab.serve.errors import ServeError
from kdalab.serve.pieces import Piece, PieceError
from kdalab.spec import StateIdentity
from kdalab.transfer.prefix import PrefixHash


class Incoming:
    """The pieces of one transfer. Its methods run on the engine's thread.

    Args:
        transfer: the name of this attempt; a piece of an earlier one is refused.
    """

    def __init__(
        self, engine: Engine, identity: StateIdentity, request: Request, transfer: str
    ) -> None:
        self.engine, self.request, self.transfer = engine, request, transfer
        self.digest = identity.digest()
        self.seen: set[int] = set()
        self.state: Piece | None = None
        self.nbytes = 0

    @property
    def missing(self) -> int:
        """Tokens whose latent KV is not here."""
        landing = self.request.landing
        return landing.missing if landing is not None else 0

    def take(self, piece: Piece) -> bool:
        """Take a piece; True when the request has begun to decode with it.

        Raises:
            PieceError: it is of another transfer, identity, prefix or boundary, or contradicts
                what is here. Nothing of it was written.
            ServeError: the other side says that it has failed.
            KdalabError: the engine refuses it, or the request expects nothing any more.
        """
        meta = piece.meta
        for what, ours, theirs in (
            ("transfer", self.transfer, meta.transfer),
            ("identity", self.digest, meta.identity),
            ("boundary", self.request.n_tokens, meta.boundary),
        ):
            if ours != theirs:
                shown = f"ours {str(ours)[:12]}, theirs {str(theirs)[:12]}"
                raise PieceError(f"a piece of another {what} ({shown})")
        if meta.kind == "error":
            raise ServeError("transfer_failed", f"prefill failed: {meta.message or meta.code}")
        if meta.kind == "waiting":
            return False
        if meta.kind == "embedding":
            raise PieceError("an embedding among the pieces of a state")
        self._check_prefix(piece)
        if meta.kind == "latent":
            land_latent(self.engine, self.request, meta.start, piece.tensors["latent"])
        else:
            self._keep_state(piece)
        self.nbytes += piece.nbytes if meta.seq not in self.seen else 0
        self.seen.add(meta.seq)
        return self._complete()

    def _check_prefix(self, piece: Piece) -> None:
        meta = piece.meta
        if not 0 <= meta.start <= meta.end <= self.request.n_tokens or meta.end < 1:
            raise PieceError(f"tokens [{meta.start:,}, {meta.end:,}) are not of this prompt")
        if meta.kind == "latent" and piece.tensors["latent"].shape[1] != meta.end - meta.start:
            raise PieceError(f"latent KV that is not of tokens [{meta.start:,}, {meta.end:,})")
        ours, theirs = PrefixHash.of(self.request.tokens, meta.end), meta.prefix
        if theirs is None or (theirs.boundary, theirs.text, theirs.images) != (
            ours.boundary,
            ours.text,
            ours.images,
        ):
            raise PieceError(f"a piece of another prefix than this prompt's first {meta.end:,}")

    def _keep_state(self, piece: Piece) -> None:
        meta = piece.meta
        if meta.end != self.request.n_tokens or meta.first is None or meta.count is None:
            raise PieceError(
                f"a state after {meta.end:,} of {self.request.n_tokens:,} tokens, or without its "
                "first token: states are taken at the prompt's end"
            )
        if self.state is not None and self.state.meta.first != meta.first:
            raise PieceError("a second state that is not like the first")
        self.state = piece

    def _complete(self) -> bool:
        """Nothing is decoded before all of one boundary is here."""
        state = self.state
        early = self.engine.config.faults.start_early
        if state is None or self.request.landing is None or (self.missing and not early):
            return False
        assert state.meta.first is not None
        recurrent, conv = state.tensors["recurrent"], state.tensors["conv"]
        land_state(self.engine, self.request, recurrent, conv, state.meta.first)
        return True
