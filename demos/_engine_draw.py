"""A recorded run's parts as HTML: each a pure function of a recording and a step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kdalab.engine.events import Event
from kdalab.errors import KdalabError
from kdalab.lessons import Recording
from kdalab.phrases import say
from kdalab.units import format_bytes
from kdalab.viz.prompt import prompt_svg
from kdalab.viz.slots import slots_svg
from kdalab.viz.state_matrix import state_matrix_svg
from kdalab.viz.svg import TokenAxis, esc
from kdalab.viz.tables import Table, table_html
from kdalab.viz.tree import node_text, tree_svg
from kdalab.viz.why import format_difference, why_html


def picture_html(run: Recording, step: int) -> str:
    """Prompts, tree and memory at this step, the first two on one axis."""
    here, view = run.steps[step], run.view(step)
    names = list(run.texts)
    longest = max(len(run.texts[p.name]) + p.max_new_tokens for p in run.scenario.prompts)
    axis = TokenAxis.for_tokens(longest)
    faults = run.faulty_at(step)
    prompts = prompt_svg(
        view,
        run.texts,
        axis,
        spacing=run.scenario.spacing,
        page_tokens=run.page_tokens,
        focus=here.request,
        faults=faults,
    )
    tree = tree_svg(
        view,
        run.texts,
        axis,
        page_tokens=run.page_tokens,
        page_bytes=run.page_bytes,
        state_bytes=run.checkpoint_bytes,
        spacing=run.scenario.spacing,
        highlight=here.highlight,
        owners=run.owners_at(step),
    )
    slots = slots_svg(
        view,
        names,
        page_tokens=run.page_tokens,
        page_bytes=run.page_bytes,
        state_bytes=run.checkpoint_bytes,
        highlight=here.highlight,
        moves=here.moves,
        faults=faults,
    )
    return f'<div class="kd-scroll">{prompts}{tree}{slots}</div>'


def why_panel(run: Recording, step: int) -> str:
    """The *why* panel; at the last step with what was measured."""
    here, match = run.steps[step], run.match_at(step)
    names = list(run.texts)
    shown = match.request if match is not None else (here.request or names[0])
    measured = run.measured if here.kind == "Measured" else ()
    return why_html(
        here.sentence,
        match,
        len(run.texts[shown]),
        index=names.index(shown),
        measured=measured,
    )


def measured_table(run: Recording) -> Table:
    """Max |difference| between each restored run and its cold run."""
    return Table(
        "Against a run from zero (max |difference|, fp32 on CPU)",
        ("request", "restored at", "computed", "logits", "recurrent", "conv", "latent KV",
         "same output"),
        tuple(
            (
                m.request,
                m.restore,
                m.n_tokens - m.restore,
                format_difference(m.logits),
                format_difference(m.recurrent),
                format_difference(m.conv),
                format_difference(m.latent),
                "yes" if m.first_difference is None else f"differs at {m.first_difference + 1}",
            )
            for m in run.measured
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Zoom:
    """A picked node or slot: its facts, and the checkpoint slot whose matrix can be shown."""

    title: str
    html: str
    slot: int | None


def zoom(run: Recording, step: int, pick: str) -> Zoom:
    """What ``pick`` ("node:3", "active:0", "checkpoint:2") is at this step.

    Raises:
        KdalabError: not the name of something that can be picked.
    """
    kind, _, number = str(pick).partition(":")
    if kind not in ("node", "active", "checkpoint") or not number.isdigit() or len(number) > 6:
        raise KdalabError(f"{str(pick)[:40]!r} cannot be looked at; pick a node or a slot")
    index, view = int(number), run.view(step)
    title = (
        f"{'Node' if kind == 'node' else kind.capitalize() + ' slot'} {index} at step {step + 1}"
    )
    if kind == "node":
        node = view.nodes.get(index)
        if node is None:
            return Zoom(title, _facts([("now", "not in the tree at this step")]), None)
        owner = run.owners_at(step).get(index, "")
        text = node_text(node, run.texts[owner], 240) if owner else ""
        facts = [
            ("tokens", f"{node.start:,} to {node.end:,}"),
            ("text", text),
            ("latent KV", f"{len(node.pages):,} pages, {_size(len(node.pages) * run.page_bytes)}"),
            ("pages", ", ".join(map(str, node.pages))),
            ("state", "none: a tombstone" if node.state is None else f"checkpoint {node.state}"),
            ("read by", ", ".join(view.readers(index)) or "nobody"),
        ]
        return Zoom(title, _facts(facts), node.state)
    sizes = (
        f"recurrent {_size(run.recurrent_bytes)} + conv {_size(run.conv_bytes)} = "
        f"{_size(run.checkpoint_bytes)}"
    )
    if kind == "active":
        holder = view.active[index] if index < len(view.active) else None
        facts = [
            ("owner", f"{holder}, private and writable" if holder else "free"),
            ("size", sizes),
        ]
        if holder:
            facts.append(("has seen", f"{view.requests[holder].computed:,} tokens"))
        return Zoom(title, _facts(facts), None)
    at = view.checkpoints[index] if index < len(view.checkpoints) else None
    if at is None:
        return Zoom(title, _facts([("node", "free"), ("size", sizes)]), None)
    facts = [
        ("node", f"{at}"),
        ("boundary", f"{view.nodes[at].end:,} tokens"),
        ("size", sizes),
        ("on the path of", ", ".join(view.readers(at)) or "nobody"),
    ]
    return Zoom(title, _facts(facts), index)


def matrix_html(
    run: Recording,
    step: int,
    slot: int,
    thing: str,
    layer: int = 0,
    head: int = 0,
    lang: str = "en",
) -> str:
    """The recurrent state in checkpoint ``slot``, one layer and head of it, and the way to others.

    ``thing`` is what was picked ("node:3"); "node:3/1.0" is the same at layer 1, head 0.
    """
    image = run.image(slot, step)
    if image is None:
        return f'<p class="kd-note">{esc(say(lang, "No state is kept there at this step."))}</p>'
    layers, heads = image.values.shape[:2]
    layer, head = min(max(layer, 0), layers - 1), min(max(head, 0), heads - 1)
    caption = f"Checkpoint {image.slot}, boundary {image.boundary:,}"
    spoken = partial(say, lang)
    shown = state_matrix_svg(image.values, layer, head, caption=caption, say=spoken)
    chips = "".join(
        f'<button type="button" data-pick="{esc(thing)}/{a}.{b}" '
        f'aria-pressed="{"true" if (a, b) == (layer, head) else "false"}" '
        f'title="{esc(spoken(f"KDA layer {a}, head {b}"))}">{a}.{b}</button>'
        for a in range(layers)
        for b in range(heads)
    )
    return (
        f'<p class="kd-chips"><span>{esc(spoken("KDA layer and head"))}</span> {chips}</p>'
        f'<div class="kd-scroll" id="kd-matrix">{shown}</div>'
    )


def events_of(run: Recording) -> list[dict[str, object]]:
    """The log, ready for JSON."""
    return [_plain(event) for event in run.events]


def _plain(event: Event) -> dict[str, object]:
    return event.as_dict()


def _facts(rows: list[tuple[str, str]]) -> str:
    return table_html(Table("", ("what", "value"), tuple(rows)))


def _size(count: int) -> str:
    return format_bytes(count)
