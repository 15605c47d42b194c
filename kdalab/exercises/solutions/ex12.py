def needs_copy(slot_of: dict[str, int], writers: list[str], cached: set[int]) -> list[str]:
    """Whoever is alone in a slot that is not the cache's may write in place."""
    readers: dict[int, int] = {}
    for slot in slot_of.values():
        readers[slot] = readers.get(slot, 0) + 1
    copied = []
    for request in writers:
        slot = slot_of[request]
        if slot in cached or readers[slot] > 1:
            copied.append(request)
            readers[slot] -= 1
    return copied
