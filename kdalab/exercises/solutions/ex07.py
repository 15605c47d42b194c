from dataclasses import replace

from kdalab.exercises import Edge


def split_node(node: Edge, n: int) -> tuple[Edge, Edge]:
    """The state stays below with its lock; whoever reads the lower part reads the upper one too."""
    page = len(node.tokens) // len(node.pages)
    lower = replace(
        node, start=node.start + n, tokens=node.tokens[n:], pages=node.pages[n // page :]
    )
    upper = Edge(
        start=node.start,
        tokens=node.tokens[:n],
        pages=node.pages[: n // page],
        kv_lock=node.kv_lock,
        children=(lower.tokens[0],),
    )
    return upper, lower
