from kdalab.exercises import PathNode


def restore_node(path: list[PathNode], n_tokens: int, page: int) -> int:
    """The boundary of the deepest node that a prompt can be restored at.

    Args:
        path: the nodes that the prompt passes, top first. The first edge begins at 0, each other
            one at the ``end`` of the node before. Only the last may be matched in part.
        n_tokens: tokens of the prompt; at least one of them must be left to compute.
        page: tokens of a page; every ``end`` is a multiple of it.

    Returns:
        The node's ``end``; 0 when there is none.
    """
    raise NotImplementedError
