"""The pictures of every step of every scenario: well formed, true to the view, and safe."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from kdalab.cache import PrefixKey
from kdalab.engine import events as ev
from kdalab.lessons import RESTORE, play, scenario
from kdalab.memory.slots import CACHE
from kdalab.viz.css import stylesheet, variables
from kdalab.viz.legend import legend_html
from kdalab.viz.prompt import prompt_svg
from kdalab.viz.slots import pool_counts, slots_svg
from kdalab.viz.state_matrix import state_matrix_svg
from kdalab.viz.svg import TokenAxis, esc, standalone
from kdalab.viz.tables import node_table, pool_table, request_table, table_html
from kdalab.viz.tree import node_text, tree_svg
from kdalab.viz.why import format_difference, why_html

NAMES = list(RESTORE)
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>window.kdHacked=1</script><img src=x onerror=alert(1)>\"'&]]>{{x}}${1}\u202e\x00"


def axis_of(run):
    return TokenAxis.for_tokens(max(len(t) for t in run.texts.values()) + 8)


def prompts_of(run, step):
    return prompt_svg(
        run.view(step),
        run.texts,
        axis_of(run),
        spacing=run.scenario.spacing,
        page_tokens=run.page_tokens,
        focus=run.steps[step].request,
        faults=run.faulty_at(step),
    )


def tree_of(run, step):
    return tree_svg(
        run.view(step),
        run.texts,
        axis_of(run),
        page_tokens=run.page_tokens,
        page_bytes=run.page_bytes,
        state_bytes=run.checkpoint_bytes,
        spacing=run.scenario.spacing,
        highlight=run.steps[step].highlight,
        owners=run.owners_at(step),
    )


def slots_of(run, step):
    here = run.steps[step]
    return slots_svg(
        run.view(step),
        list(run.texts),
        page_tokens=run.page_tokens,
        page_bytes=run.page_bytes,
        state_bytes=run.checkpoint_bytes,
        highlight=here.highlight,
        moves=here.moves,
        faults=run.faulty_at(step),
    )


def shapes(root, css):
    return [e for e in root.iter() if css in e.get("class", "").split()]


@pytest.mark.parametrize("name", NAMES)
def test_every_step_is_a_well_formed_picture_with_a_text_alternative(recorded, name):
    run = recorded(name)
    for step in range(len(run.steps)):
        for picture in (prompts_of(run, step), tree_of(run, step), slots_of(run, step)):
            root = ElementTree.fromstring(picture)
            assert root.get("role", "").endswith("img")
            assert len(root.get("aria-label", "")) > 20
            assert not re.search(
                r'="[^"]*\b(nan|inf)\b[^"]*"', re.sub(r'aria-label="[^"]*"', "", picture)
            )


@pytest.mark.parametrize("name", NAMES)
def test_the_tree_draws_each_page_state_and_tombstone_once(recorded, name):
    run = recorded(name)
    for step in range(len(run.steps)):
        nodes = run.view(step).nodes.values()
        root = ElementTree.fromstring(tree_of(run, step))
        picks = {e.get("data-pick") for e in root.iter() if e.get("data-pick")}
        assert picks == {f"node:{n.id}" for n in nodes}
        assert len(shapes(root, "kv-in")) == sum(len(n.pages) for n in nodes)
        assert len(shapes(root, "s")) == sum(not n.is_tombstone for n in nodes)
        assert len(shapes(root, "tomb")) == sum(n.is_tombstone for n in nodes)


@pytest.mark.parametrize("name", NAMES)
def test_every_slot_is_drawn_as_what_the_view_says(recorded, name):
    run = recorded(name)
    for step in range(len(run.steps)):
        view = run.view(step)
        root = ElementTree.fromstring(slots_of(run, step))
        free = [view.active, view.checkpoints, view.pages]
        assert len(shapes(root, "free")) == sum(o is None for pool in free for o in pool)
        assert len(shapes(root, "kv-in")) == sum(o == CACHE for o in view.pages)
        private = [o for o in view.pages if o not in (None, CACHE)]
        letters = [e for e in root.iter(f"{SVG}text") if "tiny" in e.get("class", "")]
        assert [e.text for e in letters] == private
        for counts in pool_counts(view).values():
            assert counts["private"] + counts["cached"] + counts["free"] == counts["total"]


def test_prompts_and_tree_share_one_scale(recorded):
    run = recorded("fan-out")
    step = len(run.steps) - 1
    prompts = ElementTree.fromstring(prompts_of(run, step))
    tree = ElementTree.fromstring(tree_of(run, step))
    cell = next(
        e
        for e in prompts.iter(f"{SVG}rect")
        if "tokens 320 to 336" in (e.findtext(f"{SVG}title") or "")
    )
    node = next(n for n in run.view(step).nodes.values() if n.start == 320)
    group = next(e for e in tree.iter() if e.get("data-pick") == f"node:{node.id}")
    page = next(e for e in group.iter(f"{SVG}rect") if "kv" in e.get("class", "").split())
    assert abs(float(cell.get("x")) - float(page.get("x"))) < 1


def test_the_marks_say_match_restore_and_replay(recorded):
    run = recorded("fan-out")
    step = next(i for i, s in enumerate(run.steps) if s.kind == "FellBack")
    words = [e.text for e in ElementTree.fromstring(prompts_of(run, step)).iter(f"{SVG}text")]
    for word in ("token match 320", "restore point 192", "replay 128", "new 88", "restored 192"):
        assert word in words
    chevrons = shapes(ElementTree.fromstring(prompts_of(run, step)), "chevron")
    assert len(chevrons) == 128 // run.page_tokens


def test_nothing_is_said_to_be_unknown_before_it_was_looked_up(recorded):
    run = recorded("fan-out")
    arrives = next(i for i, s in enumerate(run.steps) if s.kind == "Submitted" and s.request == "B")
    assert "known" not in prompts_of(run, arrives)
    assert "known to 320" in prompts_of(run, arrives + 1)
    run = recorded("unrelated")
    (match,) = (
        i
        for i, s in enumerate(run.steps)
        if s.request == "B" and "no part of this prompt" in s.sentence
    )
    assert "nothing known" in prompts_of(run, match)


def test_replayed_cells_fill_when_they_are_computed(recorded):
    run = recorded("fan-out")
    at = {s.kind: i for i, s in enumerate(run.steps) if s.request == "B"}
    before = shapes(ElementTree.fromstring(prompts_of(run, at["CopiedOnWrite"])), "done")
    after = shapes(ElementTree.fromstring(prompts_of(run, at["Replayed"])), "done")
    assert len(after) - len(before) == 2 * 128 // run.page_tokens  # a cell and its chevrons each


def test_a_copy_is_an_arrow_between_its_slots(recorded):
    run = recorded("fan-out")
    step = next(i for i, s in enumerate(run.steps) if s.kind == "CopiedOnWrite")
    root = ElementTree.fromstring(slots_of(run, step))
    assert len(shapes(root, "move")) == 1
    assert len(shapes(root, "now")) == 2


@pytest.mark.parametrize(("fault", "hatched"), [("skip_replay", 2), ("drop_conv", 1)])
def test_a_spoiled_state_is_hatched(recorded, fault, hatched):
    run = recorded("fan-out", fault)
    step = next(i for i, s in enumerate(run.steps) if s.kind == "FaultInjected")
    assert len(shapes(ElementTree.fromstring(slots_of(run, step)), "hatch")) == hatched
    assert f"on purpose: {fault}" in prompts_of(run, step)


def test_a_hostile_prompt_is_text_and_nothing_else():
    text = HOSTILE * 5
    run = play(scenario("fan-out").changed(texts=(text + "a", text + "b")))
    for step in range(len(run.steps)):
        for picture in (prompts_of(run, step), tree_of(run, step), slots_of(run, step)):
            root = ElementTree.fromstring(picture)
            tags = {e.tag.removeprefix(SVG) for e in root.iter()}
            assert tags <= {"svg", "g", "rect", "path", "circle", "text", "title"}
            assert not any(a.startswith("on") for e in root.iter() for a in e.attrib)
            assert "<script" not in picture
    assert "&lt;script&gt;" in prompts_of(run, len(run.steps) - 1)


def test_escaping_leaves_nothing_that_could_open_a_tag_or_leave_an_attribute():
    assert not set('<>"\x00\n\u202e') & set(esc(HOSTILE + "\n"))
    assert "'" not in esc(HOSTILE)


@pytest.mark.parametrize("name", NAMES)
def test_the_tables_hold_the_numbers_of_the_view(recorded, name):
    run = recorded(name)
    for step in range(len(run.steps)):
        view = run.view(step)
        assert [row[0] for row in request_table(view).rows] == list(view.requests)
        for row, request in zip(request_table(view).rows, view.requests.values(), strict=True):
            assert row[2:5] == (request.n_tokens, request.token_match, request.restore)
        rows = {r[0]: r for r in node_table(view, run.page_bytes, run.checkpoint_bytes).rows}
        assert set(rows) == set(view.nodes)
        for node in view.nodes.values():
            assert rows[node.id][2:5] == (node.start, node.end, len(node.pages))
        totals = {r[0]: r[4] for r in pool_table(view, 1, 1).rows}
        assert totals["latent pages"] == len(view.pages)
        assert totals["checkpoints"] == len(view.checkpoints)


def test_a_table_is_html_with_a_head_and_a_caption(recorded):
    run = recorded("fan-out")
    page = table_html(request_table(run.view(len(run.steps) - 1)), here=[1])
    root = ElementTree.fromstring(page)
    assert root.find(".//caption") is not None
    assert len(root.findall(".//tbody/tr")) == 2
    assert root.findall(".//tbody/tr")[1].get("class") == "here"


def test_the_why_panel_shows_every_line_of_the_lookup():
    from kdalab.cache import RadixStateCache
    from kdalab.spec.checkpoint import Checkpoint

    cache = RadixStateCache(16, 64)
    first = PrefixKey.from_tokens(list(range(200)), 16)
    lease = cache.acquire(cache.lookup(first))
    cache.commit(lease, first, list(range(8)), Checkpoint(0, 128))
    found = cache.lookup(PrefixKey.from_tokens([*range(100), *range(500, 600)], 16))
    match = ev.Matched(
        "B", found.token_match, found.restore, found.replay, found.branching, 96, 0, found.path,
        found.binding, found.why,
    )  # fmt: skip
    page = why_html("Now.", match, found.n_tokens)
    assert len(found.why) >= 6
    for line in found.why:
        assert f">{esc(line)}</li>" in page


def test_the_why_panel_ends_with_the_measurement(recorded):
    clean, broken = recorded("fan-out"), recorded("fan-out", "skip_replay")
    good = why_html("Done.", None, 408, measured=clean.measured)
    bad = why_html("Done.", None, 408, measured=broken.measured)
    assert "Bit for bit the same" in good
    assert good.count('kd-good">0<') == 4
    assert "Not the same numbers" in bad
    assert bad.count('"num kd-bad"') == 4


def test_differences_are_never_rounded_to_zero():
    assert format_difference(0.0) == "0"
    assert format_difference(1e-12) == "1e-12"
    assert format_difference(float("nan")) == "NaN"


def test_no_picture_names_a_colour(recorded):
    run = recorded("fork")
    pictures = [prompts_of(run, 9), tree_of(run, 9), slots_of(run, 9), legend_html()]
    pictures.append(why_html("x", run.match_at(9), 400, measured=run.measured))
    for picture in pictures:
        assert not re.search(
            r"#[0-9a-fA-F]{3,8}\b(?<!#\d)(?<!#\d\d)", picture.replace("&#x27;", "")
        )
        assert "rgb" not in picture


def test_both_themes_define_every_variable_that_the_rules_use():
    sheet = stylesheet()
    light, dark = (set(re.findall(r"(--kd-[\w-]+):", variables(t))) for t in ("light", "dark"))
    assert light == dark
    used = set(re.findall(r"var\((--kd-[\w-]+)", sheet))
    assert used <= light | {"--kd-ui", "--kd-mono"}


def test_a_standalone_picture_carries_its_styles(recorded):
    picture = standalone(tree_of(recorded("fan-out"), 8), "dark")
    root = ElementTree.fromstring(picture)
    assert root.get("data-theme") == "dark"
    assert "--kd-kv" in root.find(f"{SVG}style").text


def test_the_state_matrix_has_one_cell_a_value(recorded):
    values = recorded("fan-out").states[0].values
    root = ElementTree.fromstring(state_matrix_svg(values, 1, 2, caption="c"))
    titles = [e.text for e in root.iter(f"{SVG}title")]
    assert len(titles) == values.shape[2] * values.shape[3]
    assert f"value channel 3, key channel 5: {values[1, 2, 3, 5]:.5g}" in titles
    with pytest.raises(ValueError, match="use 0 to"):
        state_matrix_svg(values, 99, 0, caption="c")


def test_a_long_edge_is_cut_in_its_middle(recorded):
    run = recorded("fan-out")
    node = max(run.view(len(run.steps) - 1).nodes.values(), key=lambda n: n.end - n.start)
    text = "".join(run.texts["A"][node.start : node.end])
    shown = node_text(node, run.texts["A"])
    assert len(shown) <= 62
    assert text.startswith(shown.split(" … ")[0])
    assert text.endswith(shown.split(" … ")[1])
