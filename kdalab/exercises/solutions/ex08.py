from kdalab.exercises import PathNode


def restore_node(path: list[PathNode], n_tokens: int, page: int) -> int:
    """Walk down, and remember the last node with a state; tombstones are passed."""
    best = start = 0
    for node in path:
        complete = node.matched == node.end - start
        if complete and node.has_state and node.end < n_tokens:
            best = node.end
        start = node.end
    return best
