from kdalab.exercises import Held


def evict(nodes: list[Held], pages_wanted: int, states_wanted: int) -> list[tuple[int, str]]:
    """Give up nodes and states until enough is free, or all that is left is locked.

    Args:
        nodes: the tree, in any order; see ``Held``.
        pages_wanted: latent pages to free.
        states_wanted: states to free; those that went with nodes before count.

    Returns:
        What goes, in order: ``(id, "node")`` for a node with all it holds, ``(id, "state")`` for a
        state whose node stays as a tombstone.
    """
    raise NotImplementedError
