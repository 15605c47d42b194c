"""**Radix tree**: insert, split, tombstones, locks, two eviction orders, the branching point.

``python -m demos.tree`` opens this page alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from demos import _page
from demos._controls import Choice, Number, Settings, Switches
from demos._film import Film, Row, Seen, why_panel
from demos._lesson import Lesson
from demos._text import t
from kdalab.cache import RadixStateCache
from kdalab.lessons import STORIES, TREE_BYTES, TreeRun, play_tree
from kdalab.phrases import say, say_html
from kdalab.units import format_bytes
from kdalab.viz.orders import orders_svg
from kdalab.viz.svg import TokenAxis, esc
from kdalab.viz.tables import Table, table_html
from kdalab.viz.tree import node_text, tree_svg

_TONES = {
    "hit": "restore", "known": "restore", "miss": "restore", "lock": "copy", "leaf": "snapshot",
    "split": "snapshot", "revive": "snapshot", "existed": "snapshot", "evict-state": "evict",
    "evict-leaf": "evict", "evict-both": "evict", "release": "finish",
}  # fmt: skip


class TreeFilm(Film):
    """The acts of one story."""

    def __init__(self, run: TreeRun) -> None:
        self.run = run
        self.last = len(run.acts) - 1
        kinds = [act.kind for act in run.acts]
        self.opening = kinds.index("split") if "split" in kinds else self.last

    def sentence(self, step: int, lang: str) -> str:
        act = self.run.acts[step]
        return t(lang, f"tree.act-{act.kind}", **act.values)

    def tone(self, step: int) -> str:
        return _TONES.get(self.run.acts[step].kind, "plain")

    def picture(self, step: int, lang: str) -> str:
        act, run = self.run.acts[step], self.run
        axis = TokenAxis.for_tokens(max(len(x) for x in run.texts.values()))
        page, page_bytes, state_bytes = TREE_BYTES
        tree = tree_svg(
            act.view, run.texts, axis, page_tokens=page, page_bytes=page_bytes,
            state_bytes=state_bytes, spacing=64, highlight=act.highlight, owners=run.owners,
        )  # fmt: skip
        names = {k: t(lang, f"tree.order-{k}") for k in ("next", "locked", "none", "kv", "state")}
        marked = [int(h.split(":")[1]) for h in act.highlight]
        orders = orders_svg(
            [("kv", names["kv"], act.kv_order), ("s", names["state"], act.state_order)],
            act.locks, titles=names, label=t(lang, "tree.order-label"), highlight=marked,
        )  # fmt: skip
        return f'<div class="kd-scroll">{say_html(lang, tree)}{orders}</div>'

    def why(self, step: int, lang: str) -> str:
        act = self.run.acts[step]
        parts = [
            (t(lang, "common.in-step"), f'<p class="now">{esc(self.sentence(step, lang))}</p>')
        ]
        kind = act.kind
        if kind == "split" and act.values["node"] == act.values["upper"]:
            kind = "split-own"  # the prompt ends where the edge was split
        parts.append(
            (t(lang, "tree.why"), f"<p>{esc(t(lang, f'tree.why-{kind}', **act.values))}</p>")
        )
        if act.lookup is not None:
            lines = "".join(
                f'<li class="{"binds" if line.startswith("binding") else ""}">'
                f"{esc(say(lang, line))}</li>"
                for line in act.lookup.why
            )
            parts.append((t(lang, "tree.lookup", who=act.request), f"<ul>{lines}</ul>"))
        return why_panel(*parts)

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        act = self.run.acts[step]
        columns = ("node", "parent", "start", "end", "state", "locks", "kv-age", "state-age")
        rows = [
            (
                f"#{n.id}",
                f"#{n.parent}" if n.parent else t(lang, "tree.root"),
                n.start,
                n.end,
                t(lang, "tree.tombstone")
                if n.state is None
                else t(lang, "tree.slot", slot=n.state),
                " / ".join(map(str, act.locks.get(n.id, (0, 0)))),
                _place(act.kv_order, n.id),
                _place(act.state_order, n.id),
            )
            for n in sorted(act.view.nodes.values(), key=lambda n: (n.start, n.id))
        ]
        hits = [
            (name, len(self.run.texts[name]), restored) for name, restored in self.run.hits.items()
        ]
        return (
            Table(
                t(lang, "tree.table-nodes"),
                tuple(t(lang, f"tree.column-{c}") for c in columns),
                tuple(rows),
            ),
            Table(
                t(lang, "tree.table-hits"),
                tuple(t(lang, f"tree.column-{c}") for c in ("request", "tokens", "restored")),
                tuple(hits),
            ),
        )

    def log(self, lang: str) -> Sequence[Row]:
        return [
            Row(i, act.request, act.kind, self.sentence(i, lang))
            for i, act in enumerate(self.run.acts)
        ]

    def pick(self, step: int, name: str, lang: str) -> Seen | None:
        kind, _, number = name.partition(":")
        act = self.run.acts[step]
        node = act.view.nodes.get(int(number)) if kind == "node" and number.isdigit() else None
        if node is None:
            return None
        owner = self.run.owners.get(node.id, "")
        kv, state = act.locks.get(node.id, (0, 0))
        _, page_bytes, state_bytes = TREE_BYTES
        text = node_text(node, self.run.texts[owner], 120) if owner else ""
        rows = (
            (
                t(lang, "tree.pick-key"),
                text,
            ),
            (t(lang, "tree.pick-boundary"), f"{node.end:,}"),
            (t(lang, "tree.pick-kv"), format_bytes(len(node.pages) * page_bytes)),
            (
                t(lang, "tree.pick-state"),
                format_bytes(state_bytes) if node.state is not None else "0 B",
            ),
            (t(lang, "tree.pick-locks"), f"{kv} / {state}"),
            (t(lang, "tree.pick-owner"), owner),
        )
        title = t(lang, "tree.pick-title", node=node.id)
        return Seen(title, table_html(Table("", (t(lang, "tree.pick-what"), ""), rows)))

    def data(self) -> dict[str, Any]:
        return {
            "restored": self.run.hits,
            "acts": [
                {
                    "act": a.kind,
                    "request": a.request,
                    "values": a.values,
                    "kv_order": list(a.kv_order),
                    "state_order": list(a.state_order),
                    "nodes": [
                        {"node": n.id, "parent": n.parent, "start": n.start, "end": n.end,
                         "state": n.state}
                        for n in a.view.nodes.values()
                    ],
                }
                for a in self.run.acts
            ],
        }  # fmt: skip

    @property
    def requests(self) -> Sequence[str]:
        return tuple(self.run.texts)


def _place(order: Sequence[int], node: int) -> str:
    return str(order.index(node) + 1) if node in order else "-"


def film(settings: Settings) -> Film:
    """The film of one setting."""
    refresh = "path" if "path" in settings["breaks"] else "consumed"
    s = settings
    return TreeFilm(play_tree(s["story"], s["placement"], s["states"], s["pages"], refresh))


LESSON = Lesson(
    slug="tree",
    group="prefix",
    controls=(
        Choice("story", tuple(STORIES), "fan-out"),
        Choice("placement", ("leaf+branch", "leaf", "every:64", "every:128"), "leaf+branch"),
        Number("states", 2, 12, 4),
        Number("pages", 20, 80, 44),
        Switches("breaks", ("path",)),
    ),
    film=film,
    terms=(
        ("node, edge", "`TreeNode`, its `key`", "a run of blocks under chained hashes"),
        ("tombstone", "`mamba_value is None`", "null block in the state's table"),
        ("two orders", "full and mamba LRU lists", "one queue of free blocks"),
        (
            "lock",
            "`acquire_component_lock`: KV on the path, the state on its node",
            "reference count of a block",
        ),
        ("branching point", "`mamba_branching_seqlen`", "`shared_prefix_boundary`"),
        ("refresh rule", "consumed node; before, the whole path", "blocks of the hit"),
    ),
    code=(
        ("code-lookup", RadixStateCache.lookup),
        ("code-commit", RadixStateCache.commit),
        ("code-evict", RadixStateCache.evict),
    ),
    notebook="tree",
    exercises=("ex07", "ex08", "ex09"),
    next=("restore", "chunks"),
)


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
