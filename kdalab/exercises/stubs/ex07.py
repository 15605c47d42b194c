from kdalab.exercises import Edge


def split_node(node: Edge, n: int) -> tuple[Edge, Edge]:
    """Cut an edge of the radix tree in two.

    Args:
        node: the edge; every page holds ``len(node.tokens) // len(node.pages)`` tokens.
        n: tokens that stay above, a whole number of pages, more than none and fewer than all.

    Returns:
        ``(upper, lower)``, two new edges: who gets the state, who gets which lock, and what are the
        children of each?
    """
    raise NotImplementedError
