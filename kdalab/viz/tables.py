"""The same numbers as the pictures, as rows: for reading aloud, copying and testing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kdalab.engine.view import View
from kdalab.units import format_bytes
from kdalab.viz.slots import pool_counts
from kdalab.viz.svg import esc

Cell = str | int


@dataclass(frozen=True, slots=True)
class Table:
    """A caption, column names with their units, and rows."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def request_table(view: View) -> Table:
    """Lengths of every request that has arrived, in tokens."""
    return Table(
        "Requests (tokens)",
        ("request", "phase", "prompt", "token match", "restore point", "replay", "computed to",
         "generated", "reads pages", "owns pages", "active slot"),
        tuple(
            (
                r.name,
                r.phase,
                r.n_tokens,
                r.token_match,
                r.restore,
                max(0, r.token_match - r.restore),
                r.computed,
                len(r.generated),
                r.n_shared,
                len(r.pages) - r.n_shared,
                r.active_slot if r.active_slot >= 0 else "none",
            )
            for r in view.requests.values()
        ),
    )  # fmt: skip


def node_table(view: View, page_bytes: int, state_bytes: int) -> Table:
    """Every node of the tree, with what it holds and who reads it."""
    return Table(
        "Nodes of the tree",
        ("node", "parent", "from token", "boundary", "pages", "checkpoint", "latent KV", "state",
         "read by"),
        tuple(
            (
                n.id,
                n.parent if n.parent else "root",
                n.start,
                n.end,
                len(n.pages),
                n.state if n.state is not None else "none (tombstone)",
                format_bytes(len(n.pages) * page_bytes),
                format_bytes(state_bytes) if n.state is not None else "0 B",
                ", ".join(view.readers(n.id)) or "nobody",
            )
            for n in sorted(view.nodes.values(), key=lambda n: (n.start, n.id))
        ),
    )  # fmt: skip


def pool_table(view: View, page_bytes: int, state_bytes: int) -> Table:
    """The three pools: private + cached + free = total, in slots and bytes."""
    sizes = {"latent pages": page_bytes}
    return Table(
        "Memory (slots or pages)",
        ("pool", "private", "cached", "free", "total", "bytes of one", "bytes in use"),
        tuple(
            (
                pool,
                c["private"],
                c["cached"],
                c["free"],
                c["total"],
                format_bytes(sizes.get(pool, state_bytes)),
                format_bytes((c["private"] + c["cached"]) * sizes.get(pool, state_bytes)),
            )
            for pool, c in pool_counts(view).items()
        ),
    )


def table_html(table: Table, here: Collection[int] = ()) -> str:
    """A table as HTML; ``here`` are the indices of rows to mark."""
    head = "".join(f"<th{_css(i, table)}>{esc(c)}</th>" for i, c in enumerate(table.columns))
    body = "".join(
        f'<tr class="{"here" if r in here else ""}">'
        + "".join(f"<td{_css(i, table)}>{_shown(v)}</td>" for i, v in enumerate(row))
        + "</tr>"
        for r, row in enumerate(table.rows)
    )
    if not table.rows:
        body = f'<tr><td colspan="{len(table.columns)}">none</td></tr>'
    return (
        '<div class="kd-table-wrap"><table class="kd-table">'
        f"<caption>{esc(table.caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _shown(value: Cell) -> str:
    return f"{value:,}" if isinstance(value, int) else esc(value)


def _css(column: int, table: Table) -> str:
    cells: Sequence[Cell] = [row[column] for row in table.rows]
    numeric = bool(cells) and all(isinstance(c, int) for c in cells)
    return ' class="num"' if numeric else ""
