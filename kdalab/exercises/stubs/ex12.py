def needs_copy(slot_of: dict[str, int], writers: list[str], cached: set[int]) -> list[str]:
    """Requests that must copy their state before they write it.

    Args:
        slot_of: the slot that each request reads its state from.
        writers: requests that write in this step, one after the other; each at most once.
        cached: slots that belong to the cache: checkpoints, shared and read-only.

    Returns:
        Those of ``writers`` that must copy first, in the same order. A request that has copied has
        left the old slot.
    """
    raise NotImplementedError
