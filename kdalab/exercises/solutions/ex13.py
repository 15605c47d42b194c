def donate(
    owners: list[str | None], request: str, slot: int, known: int | None
) -> tuple[list[str | None], int]:
    """Only if the cache has none yet, and a spare slot is there to go on in."""
    owners = list(owners)
    if known is not None or None not in owners:
        return owners, slot
    spare = owners.index(None)
    owners[slot] = "cache"
    owners[spare] = request
    return owners, spare
