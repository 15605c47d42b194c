"""Reuse between instances: as far as one source holds everything, and no farther."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transfer_cases import IDENTITY, PROMPT, TINY, assert_sound, engine, same

from kdalab.cache import Bytes, parse_placement
from kdalab.engine import Engine
from kdalab.engine.exchange_events import Fetched, FetchFailed, Sent
from kdalab.errors import KdalabError
from kdalab.transfer import (
    Bundle,
    BundleFormatError,
    BundleRefusedError,
    Directory,
    EngineSource,
    FolderStore,
    Query,
    Reach,
    StoreSource,
    connect,
    export_prefix,
    identity_of,
    import_prefix,
    publish,
    relayout,
    split,
)
from kdalab.transfer.directory import Skipped
from kdalab.transfer.geometry import Geometry


class Told:
    """A source that says what it is told to."""

    def __init__(self, name: str, kv: int, *states: int) -> None:
        self.name, self.told = name, Reach(kv, states)
        self.fetched: list[int] = []

    def reach(self, query: Query) -> Reach:
        return self.told

    def fetch(self, query: Query, boundary: int) -> Bundle:
        self.fetched.append(boundary)
        raise KdalabError("it only talks")


def query(n: int = 1000, beyond: int = 0, **changes: Any) -> Query:
    return Query(IDENTITY, list(range(n)), 64, beyond, n - 1, **changes)


def warm(n: int = 192, **changes: Any) -> Engine:
    e = engine(**changes)
    e.submit(PROMPT[:n], 1)
    e.run()
    return e


def of_type(e: Engine, kind: type) -> list[Any]:
    return [x for x in e.events if isinstance(x, kind)]


def test_kinds_of_two_sources_are_never_joined() -> None:
    knows_text, has_state = Told("kv", 640, 128), Told("state", 192, 192, 640)
    found = Directory([knows_text, has_state]).find(query())
    assert (found.source, found.boundary) == (has_state, 192)
    assert found.why[0] == "kv: latent KV to 640; states at 128; restores 128"
    assert "latent KV of kv with the state of state would reach 640" in found.why[-1]


@pytest.mark.parametrize("seed", range(40))
def test_the_longest_joint_prefix_is_found_as_by_hand(seed: int) -> None:
    dice = random.Random(seed)
    sources = []
    for name in "abc"[: dice.randint(0, 3)]:
        states = sorted(dice.sample(range(64, 960, 64), dice.randint(0, 4)))
        sources.append(Told(name, dice.randrange(0, 1000, 16), *states))
    beyond = dice.choice([0, 64, 128, 500])
    found = Directory(sources).find(query(beyond=beyond))
    joint = [(b, -i) for i, s in enumerate(sources) for b in s.told.states if b <= s.told.kv]
    best = max([(b, i) for b, i in joint if b > beyond], default=None)
    if best is None:
        assert found.source is None
        assert found.boundary == beyond
    else:
        assert (found.boundary, found.source) == (best[0], sources[-best[1]])


def test_what_cannot_be_had_is_skipped_with_its_reason_and_the_next_best_taken() -> None:
    talks, holds = Told("talks", 192, 128, 192), EngineSource("holds", warm())
    directory = Directory([talks, holds])
    where = Query(IDENTITY, PROMPT, 64, 0, 199)
    source, bundle = directory.fetch(where)
    assert (source, bundle.boundary) == (holds, 192)
    assert talks.fetched == [192]
    assert [tuple(s) for s in directory.skipped] == [("talks", 192, "it only talks")]
    directory.find(where)
    assert directory.fetch(where)[0] is holds
    assert talks.fetched == [192], "it is not asked again"
    with pytest.raises(KdalabError, match="talks at 128: it only talks"):
        Directory([Told("talks", 128, 128)]).fetch(where)


@pytest.mark.parametrize("kind", ["engine", "folder"])
@pytest.mark.parametrize("local", [0, 64, 150])
def test_a_prompt_is_restored_from_elsewhere_when_that_reaches_farther(
    local: int, kind: str, tmp_path: Path
) -> None:
    a, b = warm(), engine()
    source: Any = EngineSource("A", a)
    if kind == "folder":
        source = StoreSource(FolderStore(tmp_path / "bundles"))
        for boundary in (64, 192):
            publish(a, source, PROMPT, boundary)
    if local:
        b.submit(PROMPT[:local], 1)
        b.run()
    connect(b, Directory([source]))
    request = b.submit(PROMPT, 5)
    b.run()
    assert request.restore == 192
    assert request.generated == TINY.greedy(PROMPT, 5)
    assert torch.equal(torch.stack(request.logits[:8]), TINY.logits(PROMPT)[192:])
    (event,) = of_type(b, Fetched)
    assert (event.request, event.source, event.boundary) == (request.name, source.name, 192)
    assert of_type(a, Sent)[-1].boundary == 192
    assert_sound(a)
    assert_sound(b)
    again = b.submit(PROMPT, 1)
    b.run()
    assert again.restore == 192
    assert len(of_type(b, Fetched)) == 1, "what is here is not fetched again"


def test_nothing_is_fetched_that_the_local_cache_restores_as_far() -> None:
    a, b = warm(), warm()
    connect(b, Directory([EngineSource("A", a)]))
    b.submit(PROMPT, 1)
    b.run()
    assert not of_type(b, Fetched) + of_type(b, FetchFailed) + of_type(a, Sent)


def test_latent_kv_without_a_state_elsewhere_is_of_no_use() -> None:
    a, b = warm(placement=parse_placement("every:64")), engine()
    a.give_back(a.cache.evict(Bytes(state=3 * a.checkpoints.slot_bytes)), "", "a test")
    assert [n.state for n in a.cache.nodes.values() if n.state is not None] == []
    connect(b, Directory([EngineSource("A", a)]))
    request = b.submit(PROMPT, 3)
    b.run()
    assert request.restore == 0
    assert request.generated == TINY.greedy(PROMPT, 3)


def test_an_instance_with_other_weights_is_of_no_use_and_says_why() -> None:
    other = identity_of(TINY, name="tiny", model_version="seed-9", tokenizer="bytes")
    directory = Directory([EngineSource("A", warm(identity=other))])
    found = directory.find(Query(IDENTITY, PROMPT, 64, 0, 199))
    assert found.source is None
    assert found.why == ("A: of no use (model_version: ours seed-0, theirs seed-9)",)


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "another's"])
def test_a_damaged_bundle_is_skipped_by_name_and_the_next_best_taken(
    damage: str, tmp_path: Path
) -> None:
    a, b = warm(), engine()
    store = FolderStore(tmp_path / "bundles")
    source = StoreSource(store)
    keys = {at: publish(a, source, PROMPT, at) for at in (64, 128, 192)}
    file = store.path / f"{keys[192]}.safetensors"
    data = bytearray(file.read_bytes())
    data[-9] ^= 1
    content = {"cut": bytes(data[:-40]), "flipped": bytes(data)}
    content["another's"] = (store.path / f"{keys[128]}.safetensors").read_bytes()
    directory = Directory([source])
    if damage == "gone":
        real = store.get
        store.get = lambda key: None if key == keys[192] else real(key)  # type: ignore[method-assign]
    else:
        file.write_bytes(content[damage])
    connect(b, directory)
    request = b.submit(PROMPT, 3)
    b.run()
    assert request.restore == 128
    assert request.generated == TINY.greedy(PROMPT, 3)
    (skipped,) = directory.skipped
    words = {"cut": "cut off", "flipped": "checksum", "gone": "gone", "another's": "boundary"}
    assert skipped.boundary == 192
    assert words[damage] in skipped.reason
    assert_sound(b)


class Silent:
    """A source on a line that is down, or up again."""

    name = "far"
    is_up = False

    def reach(self, query: Query) -> Reach:
        if self.is_up:
            return Reach()
        raise ConnectionError("no route")

    def fetch(self, query: Query, boundary: int) -> Bundle:
        raise ConnectionError("no route")


def test_a_source_that_cannot_be_asked_stops_nobody() -> None:
    b = engine()
    far = Silent()
    directory = Directory([far, EngineSource("A", warm())])
    connect(b, directory)
    request = b.submit(PROMPT, 1)
    b.run()
    assert request.restore == 192
    found = directory.find(Query(IDENTITY, PROMPT, 64, 0, 199))
    assert found.why[0] == "far: cannot be asked (no route)"
    assert directory.skipped == [Skipped("far", 0, "cannot be asked (no route)")], "said once"
    for far.is_up in (True, False):
        directory.find(Query(IDENTITY, PROMPT, 64, 0, 199))
    assert len(directory.skipped) == 2


def test_without_room_the_prompt_is_computed_here() -> None:
    a, b = warm(), engine(n_pages=14, n_checkpoints=1)
    connect(b, Directory([EngineSource("A", a), Told("liar", 192, 192)]))
    b.submit([7] * 40, 30, name="busy")
    b.step()
    request = b.submit(PROMPT[:100], 2)
    b.run()
    assert request.generated == TINY.greedy(PROMPT[:100], 2)
    assert_sound(b)


def test_a_fetch_that_fails_is_told_and_the_prompt_computed() -> None:
    b = engine()
    connect(b, Directory([Told("liar", 192, 192)]))
    request = b.submit(PROMPT, 2)
    b.run()
    (event,) = of_type(b, FetchFailed)
    assert "it only talks" in event.reason
    assert (event.source, event.boundary) == ("liar", 192)
    assert request.generated == TINY.greedy(PROMPT, 2)
    assert_sound(b)


def test_bundles_of_two_ranks_in_another_layout_serve_one_rank(tmp_path: Path) -> None:
    a, b = warm(), engine()
    store = FolderStore(tmp_path)
    writer = StoreSource(store)
    parts = [relayout(p, "k_first", "channel_first") for p in split(export_prefix(a, PROMPT), 2)]
    reader = StoreSource(store, 2, "k_first", "channel_first")
    writer.put(parts[0])
    directory = Directory([reader])
    assert directory.find(Query(IDENTITY, PROMPT, 64, 0, 199)).source is None, "rank 1 is missing"
    writer.put(parts[1])
    _, bundle = directory.fetch(Query(IDENTITY, PROMPT, 64, 0, 199))
    assert same(bundle, export_prefix(a, PROMPT))
    connect(b, directory)
    request = b.submit(PROMPT, 4)
    b.run()
    assert (request.restore, request.generated) == (192, TINY.greedy(PROMPT, 4))


def test_a_store_that_gives_another_states_bytes_is_not_believed(tmp_path: Path) -> None:
    a, store = warm(), FolderStore(tmp_path)
    source = StoreSource(store)
    publish(a, source, PROMPT, 128)
    where = Query(IDENTITY, PROMPT, 64, 0, 199)
    false = export_prefix(a, PROMPT, 128).parts()
    store.put(export_prefix(a, PROMPT, 192).key, false)
    assert source.reach(where).joint == (128, 192)
    with pytest.raises(BundleRefusedError, match="boundary: ours 192, theirs 128"):
        source.fetch(where, 192)


@pytest.mark.parametrize("number", ["1e999", "Infinity", "NaN", "true", '"1"', "9" * 5000])
def test_an_absurd_number_in_a_store_ends_nobodys_run(number: str, tmp_path: Path) -> None:
    a, b, source = warm(), engine(), StoreSource(FolderStore(tmp_path))
    publish(a, source, PROMPT, 128)
    far = export_prefix(a, PROMPT, 192)
    data, field = far.to_bytes(), b'\\"parallel.tp_size\\":'
    size = int.from_bytes(data[:8], "little")
    head = data[8 : 8 + size].replace(field + b"1", field + number.replace('"', '\\"').encode())
    source.store.put(far.key, [len(head).to_bytes(8, "little"), head, data[8 + size :]])
    directory = Directory([source])
    connect(b, directory)
    request = b.submit(PROMPT, 3)
    b.run()
    assert (request.restore, request.generated) == (128, TINY.greedy(PROMPT, 3))
    assert [s.boundary for s in directory.skipped] == [192]


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_false_shape_under_a_true_stamp_is_held_against_the_model(
    n_ranks: int, tmp_path: Path
) -> None:
    """Whole in itself: twice the heads of half the V have the same bytes, and the same channels."""
    a, b, store = warm(), engine(), FolderStore(tmp_path)
    source = StoreSource(store, n_ranks)
    for part in split(export_prefix(a, PROMPT), n_ranks):
        layers, heads, v, k = part.recurrent.shape
        false = part.changed(recurrent=part.recurrent.view(layers, 2 * heads, v // 2, k))
        assert Bundle.from_bytes(false.to_bytes()).key == part.key
        source.put(false)
    if n_ranks == 1:
        with pytest.raises(BundleRefusedError, match=r"recurrent\.shape") as caught:
            import_prefix(b, false, PROMPT)
        assert [r.field for r in caught.value.refusals] == ["recurrent.shape"]
    directory = Directory([source])
    connect(b, directory)
    request = b.submit(PROMPT, 3)
    b.run()
    assert (request.restore, request.generated) == (0, TINY.greedy(PROMPT, 3))
    assert "recurrent.shape" in directory.skipped[0].reason
    assert_sound(b)


def test_a_geometry_names_every_size_that_is_not_the_models() -> None:
    whole = export_prefix(warm(), PROMPT)
    true = Geometry.of(TINY)
    for part in (whole, *split(relayout(whole, "k_first", "channel_first"), 2)):
        assert true.refusals(part) == []
    for changes, field in (
        ({"channels": (64, 64, 256)}, "channels"),
        ({"recurrent": (9, *true.recurrent[1:])}, "recurrent.shape"),
        ({"conv_inputs": true.conv_inputs + 1}, "conv.shape"),
        ({"latent": (true.latent[0] + 1, true.latent[1])}, "latent.shape"),
    ):
        assert field in [r.field for r in replace(true, **changes).refusals(whole)]


def test_a_bundle_is_published_once(tmp_path: Path) -> None:
    a, source = warm(), StoreSource(FolderStore(tmp_path))
    key = publish(a, source, PROMPT)
    file = tmp_path / f"{key}.safetensors"
    before = file.stat().st_mtime_ns
    assert publish(a, source, PROMPT) == key
    assert file.stat().st_mtime_ns == before
    assert f"-{192}-" in key


def test_a_damaged_bundle_can_be_published_anew(tmp_path: Path) -> None:
    a, source = warm(), StoreSource(FolderStore(tmp_path))
    file = tmp_path / f"{publish(a, source, PROMPT)}.safetensors"
    file.write_bytes(b"no bundle at all")
    where = Query(IDENTITY, PROMPT, 64, 0, 199)
    publish(a, source, PROMPT)
    with pytest.raises(BundleFormatError):
        source.fetch(where, 192)
    publish(a, source, PROMPT, replace=True)
    assert same(source.fetch(where, 192), export_prefix(a, PROMPT))
