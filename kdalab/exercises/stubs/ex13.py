def donate(
    owners: list[str | None], request: str, slot: int, known: int | None
) -> tuple[list[str | None], int]:
    """A request gives its state to the cache without copying it.

    Args:
        owners: of each slot: ``"cache"``, a request's name, or None when it is free.
        request: who donates.
        slot: its private slot, whose state stands at the boundary.
        known: the slot in which the cache has a state of this very prefix already, or None.

    Returns:
        ``(owners, next_slot)``: a new list of owners, and the slot that the request writes next.
    """
    raise NotImplementedError
