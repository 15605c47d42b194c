"""States combine only under equal identity; an entry's key and its state never disagree."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import pytest

from kdalab.errors import InvariantError, KdalabError
from kdalab.spec import (
    CacheEntry,
    IdentityMismatchError,
    Location,
    ParallelLayout,
    StateIdentity,
    StateKind,
    Tier,
    preset,
)


def identity(**changes):
    base = StateIdentity.of(preset("tiny"), model_version="r1", tokenizer="bytes-320")
    return replace(base, **changes)


OTHERS = {
    "model": {"model": "other"},
    "model_version": {"model_version": "r2"},
    "tokenizer": {"tokenizer": "other"},
    "state_dtype": {"state_dtype": "bf16"},
    "conv_dtype": {"conv_dtype": "bf16"},
    "kv_dtype": {"kv_dtype": "fp8"},
    "recurrent_layout": {"recurrent_layout": "k_first"},
    "conv_layout": {"conv_layout": "time_first"},
    "parallel.tp_size": {"parallel": ParallelLayout(tp_size=2)},
    "parallel.pp_size": {"parallel": ParallelLayout(pp_size=2)},
    "extra": {"extra": (("lora", "a"),)},
}


@pytest.mark.parametrize("name", OTHERS)
def test_every_field_changes_the_digest_and_is_named(name):
    one, other = identity(), identity(**OTHERS[name])
    assert one.difference(other) == (name,)
    assert one.digest() != other.digest()
    with pytest.raises(IdentityMismatchError, match=name):
        one.require_equal(other)


def test_equal_identities_agree():
    one, same = identity(), identity(state_dtype="torch.float32")
    assert one == same
    assert one.difference(same) == ()
    one.require_equal(same)
    assert one.digest() == same.digest()
    ranks = [identity(parallel=ParallelLayout(tp_size=2, tp_rank=r)) for r in (0, 1)]
    assert ranks[0].difference(ranks[1]) == ("parallel.tp_rank",)
    pairs = (("lora", "a"), ("salt", "b"))
    assert identity(extra=pairs).digest() == identity(extra=pairs[::-1]).digest()


def test_digest_is_the_same_in_another_process():
    code = (
        "from kdalab.spec import *;"
        "one = StateIdentity.of(preset('tiny'), model_version='r1', tokenizer='bytes-320');"
        "print(one.digest())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == identity().digest()


def test_identity_survives_json():
    one = identity(parallel=ParallelLayout(4, 3, 2, 1), extra=(("lora", "a"),))
    assert StateIdentity.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    broken = one.to_dict() | {"surprise": 1}
    del broken["tokenizer"]
    with pytest.raises(KdalabError, match=r"missing \['tokenizer'\], unknown \['surprise'\]"):
        StateIdentity.from_dict(broken)


@pytest.mark.parametrize("name", ["tp_size", "tp_rank", "pp_size", "pp_rank"])
@pytest.mark.parametrize(
    "value", ["x", "1", 1.0, True, None, [1], float("inf"), float("nan"), 2**40]
)
def test_a_rank_is_a_whole_number_and_nothing_else(name, value):
    with pytest.raises(KdalabError, match=f"^identity: {name} is "):
        StateIdentity.from_dict(identity().to_dict() | {f"parallel.{name}": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("extra", x) for x in (None, "ab", ["ab"], [["a"]], [["a", 1]], {"ab": 1}, 3)]
    + [("state_dtype", []), ("model", 5), ("recurrent_layout", {}), ("tokenizer", None)],
)
def test_a_text_of_an_identity_is_a_text(name, value):
    with pytest.raises(KdalabError, match=f"identity: {name} is "):
        StateIdentity.from_dict(identity().to_dict() | {name: value})


@pytest.mark.parametrize(
    "changes",
    [{"model_version": ""}, {"state_dtype": "fp7"}, {"recurrent_layout": "diagonal"}],
)
def test_bad_identity_is_refused(changes):
    with pytest.raises(KdalabError):
        identity(**changes)


def test_bad_rank_is_refused():
    with pytest.raises(KdalabError, match="tp_rank 2 of tp_size 2"):
        ParallelLayout(tp_size=2, tp_rank=2)


def entry(**changes):
    fields = {
        "identity": identity(),
        "prefix_hash": "abc",
        "boundary": 128,
        "kind": StateKind.KDA_RECURRENT,
        "location": Location(Tier.DEVICE, "checkpoints", (3,), boundary=128),
        "dtype": "fp32",
        "layout": "v_first",
    }
    return CacheEntry(**(fields | changes))


def test_entry_whose_boundary_differs_from_its_states_cannot_exist():
    assert entry().boundary == entry().location.boundary == 128
    with pytest.raises(InvariantError, match="valid at 128 tokens cannot be filed under 192"):
        entry(boundary=192)
    with pytest.raises(InvariantError, match="key length equals state length"):
        replace(entry(), boundary=127)
    with pytest.raises(FrozenInstanceError):
        entry().boundary = 192


def test_shared_is_read_only_and_private_may_be_written():
    private = Location(Tier.DEVICE, "active", (0,), boundary=128, owner="A")
    assert entry(location=private, writable=True).writable
    assert not entry(location=private).writable
    with pytest.raises(InvariantError, match="shared is read-only"):
        entry(writable=True)


def test_stored_form_must_belong_to_the_identity():
    assert entry(dtype="int8").dtype == "int8"
    with pytest.raises(KdalabError, match="stored as bf16; under this identity it is fp32 or int8"):
        entry(dtype="bf16")
    with pytest.raises(KdalabError, match="layout 'k_first'"):
        entry(layout="k_first")
    with pytest.raises(KdalabError, match="conv state stored as int8"):
        entry(kind=StateKind.KDA_CONV, dtype="int8", layout="channel_first")
    assert entry(kind=StateKind.EMBEDDING, dtype="bf16", layout="row").layout == "row"


@pytest.mark.parametrize("bad", [{"boundary": -1}, {"slots": (-1,)}])
def test_impossible_locations_are_refused(bad):
    fields = {"tier": Tier.HOST, "pool": "p", "slots": (0,), "boundary": 0}
    with pytest.raises(KdalabError):
        Location(**(fields | bad))
