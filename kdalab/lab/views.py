"""What a policy of one's own sees of the cache: its nodes, to be read only.

A view is made when it is asked for, so a policy pays for the nodes that it looks at. Whatever it
tries to write raises there and then, inside the call that the guard names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class NodeView:
    """A node of the tree, read-only: its fields, with views for the nodes among them."""

    __slots__ = ("__node",)

    def __init__(self, node: Any) -> None:
        object.__setattr__(self, "_NodeView__node", node)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__node, name)
        if name == "parent":
            return None if value is None else NodeView(value)
        if name == "children":
            return NodesView(value)
        if callable(value):
            raise AttributeError(f"a policy only reads nodes; {name} is no field")
        return value

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a policy only reads nodes; it tried to set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a policy only reads nodes; it tried to delete {name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeView) and self.__node is other.__node

    def __hash__(self) -> int:
        return hash(self.__node)

    def __repr__(self) -> str:
        return repr(self.__node)


class NodesView(Mapping[Any, NodeView]):
    """A mapping of the cache's nodes, in the cache's order, read-only."""

    __slots__ = ("__nodes",)

    def __init__(self, nodes: Mapping[Any, Any]) -> None:
        self.__nodes = nodes

    def __getitem__(self, key: Any) -> NodeView:
        return NodeView(self.__nodes[key])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__nodes)

    def __len__(self) -> int:
        return len(self.__nodes)
