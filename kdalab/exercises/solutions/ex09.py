from dataclasses import replace

from kdalab.exercises import Held


def evict(nodes: list[Held], pages_wanted: int, states_wanted: int) -> list[tuple[int, str]]:
    """Leaves by the age of their KV; then states by their own age."""
    left = {n.id: n for n in nodes}
    gone: list[tuple[int, str]] = []
    freed = {"pages": 0, "states": 0}

    def has_children(node: Held) -> bool:
        return any(n.parent == node.id for n in left.values())

    def remove(node: Held) -> None:
        del left[node.id]
        gone.append((node.id, "node"))
        freed["pages"] += node.pages
        freed["states"] += node.has_state
        above = left.get(node.parent)
        if above and not (above.has_state or above.kv_lock or has_children(above)):
            remove(above)

    while freed["pages"] < pages_wanted:
        leaves = [n for n in left.values() if not n.kv_lock and not has_children(n)]
        if not leaves:
            break
        remove(min(leaves, key=lambda n: n.kv_used))
    while freed["states"] < states_wanted:
        free = [n for n in left.values() if n.has_state and not n.state_lock]
        if not free:
            break
        oldest = min(free, key=lambda n: n.state_used)
        if oldest.kv_lock or has_children(oldest):
            left[oldest.id] = replace(oldest, has_state=False)
            gone.append((oldest.id, "state"))
            freed["states"] += 1
        else:
            remove(oldest)
    return gone
