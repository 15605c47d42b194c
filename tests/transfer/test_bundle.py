"""The blob: what is written is read back, by others too, and nothing false is believed."""

from __future__ import annotations

import hashlib
import json
import random
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transfer_cases import CHANNELS, rank, same, small_bundle, small_identity

from kdalab.cache import Image
from kdalab.errors import KdalabError
from kdalab.transfer import (
    Bundle,
    BundleFormatError,
    BundleRefusedError,
    PrefixHash,
    combine,
    load_bundle,
    load_metadata,
    negotiate,
    prefix_hashes,
    save_bundle,
)
from kdalab.transfer.atomic import write_atomically
from kdalab.transfer.checksum import BLOCK, checksum, copy_and_sum
from kdalab.transfer.container import MAX_HEADER, META_KEY

GOLDEN = Path(__file__).parent / "golden" / "bundle_v1.safetensors"
STAMP_OF_GOLDEN = "8bef08c67f5e9f17bd04ba6710b417f5"


Change = Callable[[dict[str, Any], dict[str, Any]], None]


def edited(data: bytes, change: Change, restamp: bool = True) -> bytes:
    """The blob with its header and its metadata changed by ``change(header, metadata)``.

    With ``restamp`` as by somebody who knows the format: what is false is then for the checks
    behind the stamp to find.
    """
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    meta = json.loads(header["__metadata__"][META_KEY])
    change(header, meta)
    if restamp and isinstance(meta, dict):
        meta["stamp"] = stamp_by_hand(header, meta)
    header["__metadata__"][META_KEY] = json.dumps(meta)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def stamp_by_hand(header: dict[str, Any], meta: dict[str, Any]) -> str:
    """The definition."""
    table = {
        name: [t["dtype"], t["shape"]] if isinstance(t, dict) else t
        for name, t in header.items()
        if name != "__metadata__"
    }
    said = [{name: value for name, value in meta.items() if name != "stamp"}, table]
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def test_what_is_written_is_read_back() -> None:
    bundle = small_bundle(embeddings=torch.arange(6.0).view(2, 3), writable=False)
    again = Bundle.from_bytes(bundle.to_bytes())
    assert same(bundle, again)
    assert again.boundary == 10
    assert again.latent_tokens().shape == (3, 10, 7)
    assert torch.equal(again.latent_tokens()[:, 5], bundle.latent[1, :, 1])


def test_the_library_reads_ours_and_we_read_the_librarys(tmp_path: Path) -> None:
    bundle = small_bundle()
    file = save_bundle(bundle, tmp_path / "b.safetensors")
    with safetensors.safe_open(file, "pt") as opened:
        assert set(opened.keys()) == {"latent", "recurrent", "conv"}
        for name in opened.keys():  # noqa: SIM118
            assert torch.equal(opened.get_tensor(name), getattr(bundle, name))
        meta = opened.metadata()
    written = safetensors.torch.save(dict(bundle.tensors), meta)
    assert same(Bundle.from_bytes(written), bundle)


def test_the_golden_bundle_of_version_1_still_reads() -> None:
    """Written by the first version of this code. If this fails, old files cannot be read any
    more: add a reader, do not write the file anew."""
    assert load_metadata(GOLDEN)[0].stamp == STAMP_OF_GOLDEN
    bundle = load_bundle(GOLDEN)
    assert bundle.identity == small_identity()
    # The hash of a prefix, and the key made of it, are part of the format.
    assert bundle.prefix == PrefixHash(10, "985cf028840e4c1d2f9011a224900445")
    assert bundle.prefix == PrefixHash.of(list(range(10)))
    assert bundle.key == (
        "kdalab-bdc8c8c54a5d18999b783e7d2be3b4d8-69916ed61e3bd337559fc3ee36e49917-10-tp0of1-pp0of1"
    )
    assert bundle.channels == CHANNELS
    assert bundle.latent.shape == (3, 3, 4, 7)
    assert bundle.recurrent[1, 2, 5].tolist() == [1.375, 1.5, 1.625, 1.75, 1.875]


@pytest.mark.parametrize("name", ["latent", "recurrent", "conv"])
def test_one_flipped_bit_is_found_and_the_tensor_named(name: str) -> None:
    bundle = small_bundle()
    data = bytearray(bundle.to_bytes())
    size = int.from_bytes(data[:8], "little")
    begin = json.loads(data[8 : 8 + size])[name]["data_offsets"][0]
    data[8 + size + begin + 3] ^= 4
    with pytest.raises(BundleFormatError, match=f"{name}: checksum"):
        Bundle.from_bytes(data)


def checksum_by_hand(data: bytes) -> int:
    """The definition, word by word."""
    import zlib

    crc = 0
    for at in range(0, len(data), BLOCK):
        block = data[at : at + BLOCK]
        n = len(block) // 8
        words = [int.from_bytes(block[8 * i : 8 * i + 8], "little") for i in range(n)]
        for width in (256, 251):
            rows = n // width
            sums = [sum(words[c : rows * width : width]) % 2**64 for c in range(width)]
            crc = zlib.crc32(b"".join(x.to_bytes(8, "little") for x in sums), crc)
            crc = zlib.crc32(block[8 * rows * width : 8 * n], crc)
        crc = zlib.crc32(block[8 * n :], crc)
    return crc


@pytest.mark.parametrize("size", [0, 1, 7, 8, 2007, 2008, 2048, 5000, BLOCK + 4099])
def test_the_checksum_is_what_it_is_defined_as(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert checksum(data) == checksum_by_hand(data)
    target = bytearray(size + 3)
    assert copy_and_sum(data, memoryview(target)) == checksum(data)
    assert target == data + b"\0\0\0"


@given(st.integers(1, 3 * BLOCK), st.integers(0, 2**32), st.integers(1, 2000), st.data())
@settings(max_examples=30, deadline=None)
def test_a_changed_run_of_bytes_is_always_found(
    size: int, at: int, run: int, more: st.DataObject
) -> None:
    data = bytearray(size)
    before, start = checksum(data), at % size
    for i in range(start, min(start + run, size)):
        data[i] ^= more.draw(st.integers(0, 255)) if i > start and run < 40 else 0x5A
    assert checksum(data) != before


@pytest.mark.parametrize("apart", [1, 251, 256, 251 * 3, 256 * 3, BLOCK // 8])
def test_words_that_change_places_are_found(apart: int) -> None:
    words = list(random.Random(0).randbytes(2 * BLOCK))
    swapped = words.copy()
    a, b = 8 * 11, 8 * (11 + apart)
    swapped[a : a + 8], swapped[b : b + 8] = words[b : b + 8], words[a : a + 8]
    assert checksum(bytes(words)) != checksum(bytes(swapped))


@pytest.mark.parametrize("cut", [0, 5, 8, 60, 900, -1])
def test_a_cut_file_is_refused(cut: int, tmp_path: Path) -> None:
    data = small_bundle().to_bytes()[:cut]
    with pytest.raises(BundleFormatError):
        Bundle.from_bytes(data)
    (tmp_path / "cut").write_bytes(data)
    with pytest.raises(BundleFormatError, match=r"^cut: "):
        load_bundle(tmp_path / "cut")


def test_a_huge_header_is_refused_before_it_is_read(tmp_path: Path) -> None:
    data = (1 << 40).to_bytes(8, "little") + b"{" * 100
    with pytest.raises(BundleFormatError, match=f"at most {MAX_HEADER:,}"):
        Bundle.from_bytes(data)
    (tmp_path / "huge").write_bytes(data)
    with pytest.raises(BundleFormatError, match="at most"):
        load_bundle(tmp_path / "huge")


def set_meta(path: str, value: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    def change(_: dict[str, Any], meta: dict[str, Any]) -> None:
        *way, last = path.split("/")
        for step in way:
            meta = meta[step]
        if value is KeyError:
            del meta[last]
        else:
            meta[last] = value

    return change


def set_header(path: str, value: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda header, _: set_meta(path, value)({}, header)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_meta("version", 2), r"version 2; this reader knows 1: update KDALab"),
        (set_meta("version", 0), r"version 0; this reader knows 1: have the sender"),
        (set_meta("version", True), "version True"),
        (set_meta("format", "pickle"), "format 'pickle'"),
        (set_meta("page_tokens", 0), "page_tokens"),
        (set_meta("page_tokens", 5), "page_tokens 5, but the pages have 4"),
        (set_meta("page_tokens", "4"), "page_tokens"),
        (set_meta("channels", [20, 20]), "channels"),
        (set_meta("channels", [20, 20, 25]), "conv: 2 layers of 64 channels"),
        (set_meta("channels", [15, 25, 24]), "q and k have equally many"),
        (set_meta("channels", [18, 18, 28]), "are not the 28 channels of v"),
        (set_meta("prefix/boundary", -1), "prefix.boundary"),
        (set_meta("prefix/text", "xyz"), "prefix.text"),
        (set_meta("identity/model", ""), "StateIdentity.model"),
        (set_meta("identity/model", KeyError), "missing"),
        (set_meta("identity/tp", 1), "unknown"),
        (set_meta("identity/parallel.tp_size", float("inf")), "tp_size is inf"),
        (set_meta("identity/parallel.tp_size", float("nan")), "tp_size is nan"),
        (set_meta("identity/parallel.tp_size", True), "tp_size is True"),
        (set_meta("identity/parallel.tp_rank", "0"), "tp_rank is '0'"),
        (set_meta("identity/parallel.pp_size", 1.0), "pp_size is 1.0"),
        (set_meta("identity/parallel.pp_size", 10**400), "pp_size is 1000"),
        (set_meta("identity/state_dtype", ["fp32"]), "state_dtype"),
        (set_meta("identity/conv_layout", {}), "conv_layout"),
        (set_meta("identity/extra", {"ab": 1}), "extra is"),
        (set_meta("identity/extra", [["a", 1]]), "extra is"),
        (set_meta("more", 1), "more"),
        (set_meta("tensors/conv", KeyError), "no conv: a bundle holds the whole state"),
        (set_meta("tensors/latent/checksum", -1), "tensors.latent.checksum"),
        (set_header("conv/dtype", "PICKLE"), "dtype 'PICKLE'"),
        (set_header("conv/shape", [2, 3, 63]), "takes 756 bytes"),
        (set_header("conv/shape", [2, 3, -64]), "shape"),
        (set_header("conv/shape", [1 << 62] * 9), "shape"),
        (set_header("conv/data_offsets", [0, 768]), "takes|begins"),
        (set_header("conv", KeyError), "the tensors take"),
        (set_header("conv", 3), "a tensor has dtype"),
        (set_header("extra", {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}), "extra"),
    ],
)
def test_a_header_that_is_not_true_is_refused(change: Any, message: str) -> None:
    data = small_bundle().to_bytes()
    try:
        bad = edited(data, change)
    except TypeError:
        pytest.fail("the edit itself is wrong")
    with pytest.raises(BundleFormatError, match=message):
        Bundle.from_bytes(bad)


@pytest.mark.parametrize(
    "change",
    [
        set_meta("channels", [40, 0, 24]),
        set_meta("channels", [15, 25, 24]),
        set_meta("page_tokens", 8),
        set_meta("writable", False),
        set_meta("checkpoint_dtype", "int8"),
        set_meta("identity/model", "n"),
        set_meta("identity/extra", [["salt", "x"]]),
        set_meta("prefix/text", "0" * 32),
        set_meta("tensors/conv/boundary", 9),
        set_meta("stamp", "0" * 32),
        set_header("recurrent/shape", [2, 6, 4, 5]),
        set_header("latent/shape", [3, 4, 3, 7]),
        set_header("conv/dtype", "F16"),
    ],
)
def test_a_header_that_was_changed_is_not_the_one_that_was_stamped(
    change: Change, tmp_path: Path
) -> None:
    data = edited(small_bundle().to_bytes(), change, restamp=False)
    with pytest.raises(BundleFormatError, match=r"channels|the header has changed"):
        Bundle.from_bytes(data)
    (tmp_path / "b").write_bytes(data)
    with pytest.raises(BundleFormatError, match=r"channels|the header has changed"):
        load_metadata(tmp_path / "b")


def test_the_stamp_is_what_it_is_defined_as() -> None:
    bundle = small_bundle(identity=small_identity(model="模型", extra=(("a", "b"),)))
    data = bundle.to_bytes()
    assert edited(data, lambda _, meta: None)[8:].count(bundle.metadata().stamp.encode()) == 1
    assert same(Bundle.from_bytes(edited(data, lambda _, meta: None)), bundle)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_change_of_the_header_does_worse_than_be_refused(data: st.DataObject) -> None:
    blob = bytearray(small_bundle().to_bytes())
    size = int.from_bytes(blob[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(0, 7 + size))] = data.draw(st.integers(0, 255))
    try:
        read = Bundle.from_bytes(blob)
    except KdalabError:
        return
    assert read.nbytes == small_bundle().nbytes


@pytest.mark.parametrize("room", [0, 100])
def test_it_is_written_into_memory_that_is_there(room: int) -> None:
    bundle = small_bundle()
    target = bytearray(b"\xaa") * (bundle.blob_bytes + room)
    assert bundle.write_into(target) == bundle.blob_bytes == len(bundle.to_bytes())
    assert target[: bundle.blob_bytes] == bundle.to_bytes()
    assert target[bundle.blob_bytes :] == b"\xaa" * room
    for wrong, word in ((target[: bundle.blob_bytes - 1], "bytes"), (bytes(target), "read-only")):
        before = bytes(wrong)
        with pytest.raises(KdalabError, match=f"this one is .*{word}"):
            bundle.write_into(memoryview(wrong))
        assert bytes(wrong) == before


def test_one_of_several_blocks_is_written_as_the_same_blob() -> None:
    wide = small_bundle(embeddings=torch.randn(9_000, 300))
    target = bytearray(wide.blob_bytes)
    wide.write_into(target)
    assert target == wide.to_bytes()
    assert same(Bundle.from_bytes(target), wide)


def test_a_bare_safetensors_file_is_no_bundle() -> None:
    plain = safetensors.torch.save({"latent": torch.zeros(3)}, {"format": "pt"})
    with pytest.raises(BundleFormatError, match="safetensors without"):
        Bundle.from_bytes(plain)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latent": torch.zeros(2, 3, 4, 7).half()}, "2 pages of 4 tokens for a boundary of 10"),
        ({"latent": torch.zeros(3, 3, 4, 7)}, "latent: torch.float32, but the identity says fp16"),
        ({"recurrent": torch.zeros(2, 4, 5, 6)}, "4 heads of V = 5"),
        ({"recurrent": torch.zeros(3, 4, 6, 5)}, "2 layers of 64 channels; 3 layers"),
        ({"recurrent": torch.zeros(2, 2, 6, 5)}, "recurrent: 2 heads"),
        ({"conv": torch.zeros(2, 64, 3).bfloat16()}, "2 layers of 3 channels"),
        ({"conv": torch.zeros(2, 3, 0).bfloat16()}, "none of them empty"),
        ({"channels": (20, 20, 0)}, "channels"),
        (
            {"channels": (18, 18, 24), "conv": torch.zeros(2, 3, 60).bfloat16()},
            "q and k have equally many, in heads of K = 5",
        ),
        ({"identity": small_identity(parallel=rank(3, 0))}, "dealt evenly to 3 ranks"),
        ({"identity": small_identity(recurrent_layout="k_first")}, "recurrent: 4 heads of V = 5"),
        ({"embeddings": torch.zeros(3)}, "embeddings"),
        ({"checkpoint_dtype": "fp8"}, "checkpoint_dtype 'fp8'"),
    ],
)
def test_a_bundle_that_is_not_whole_cannot_be_made(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(KdalabError, match=message):
        small_bundle(**changes)


def test_latent_kv_of_one_state_never_goes_with_another() -> None:
    mine, other = small_bundle(0), small_bundle(1)
    assert torch.equal(combine(mine, other).recurrent, other.recurrent)
    elsewhere = other.changed(prefix=PrefixHash.of([9] * 10))
    with pytest.raises(BundleRefusedError, match="prefix") as caught:
        combine(mine, elsewhere)
    assert [r.field for r in caught.value.refusals] == ["prefix"]
    newer = other.changed(identity=small_identity(model_version="v2"))
    with pytest.raises(BundleRefusedError, match="model_version: ours v2, theirs v1"):
        combine(mine, newer)


@pytest.mark.parametrize(
    ("stamp", "value", "field"),
    [
        ("identity", "0" * 64, "conv.identity"),
        ("prefix", "0" * 32, "conv.prefix"),
        ("boundary", 8, "conv.boundary"),
    ],
)
def test_a_tensor_of_another_state_in_the_file_is_refused(
    stamp: str, value: Any, field: str
) -> None:
    forged = edited(small_bundle().to_bytes(), set_meta(f"tensors/conv/{stamp}", value))
    with pytest.raises(BundleRefusedError) as caught:
        Bundle.from_bytes(forged)
    assert [r.field for r in caught.value.refusals] == [field]


def test_a_changed_bundle_does_not_keep_old_checksums() -> None:
    read = Bundle.from_bytes(small_bundle().to_bytes())
    changed = read.changed(recurrent=read.recurrent + 1)
    assert same(Bundle.from_bytes(changed.to_bytes()), changed)


def test_a_prefix_hash_covers_text_boundary_and_images() -> None:
    tokens = list(range(100))
    a, b = prefix_hashes(tokens, [40, 90])
    assert a == PrefixHash.of(tokens[:40]) == PrefixHash.of(tokens, 40)
    assert b == PrefixHash.of(tokens, 90)
    assert PrefixHash.of([*tokens[:39], 7]).text != a.text
    cat, dog = Image(10, 14, b"cat"), Image(10, 14, b"dog")
    with_cat, with_dog = (PrefixHash.of(tokens, 40, [i]) for i in (cat, dog))
    assert with_cat.text == with_dog.text == a.text
    assert len({with_cat.images, with_dog.images, a.images}) == 3
    assert PrefixHash.of(tokens, 10, [cat]) == PrefixHash.of(tokens, 10), "it begins later"
    assert PrefixHash.of(tokens, 40, [replace(cat, start=11)]).images != with_cat.images
    assert len({p.digest for p in (a, b, with_cat, with_dog)}) == 4


@pytest.mark.parametrize("tokens", [[], [2**31], ["a"], [0.5]])
def test_what_is_no_text_has_no_hash(tokens: list[Any]) -> None:
    with pytest.raises(KdalabError):
        PrefixHash.of(tokens)


def test_both_sides_agree_on_a_version_or_say_why_not() -> None:
    assert negotiate([1, 2, 3]) == 1
    with pytest.raises(BundleFormatError, match=re.escape("ours [1], theirs [2, 3]")):
        negotiate([3, 2])
    with pytest.raises(BundleFormatError, match="version 7"):
        small_bundle().to_bytes(version=7)


def test_the_key_tells_identity_prefix_boundary_and_rank_apart() -> None:
    bundle = small_bundle()
    others = [
        bundle.changed(identity=small_identity(model_version="v2")),
        bundle.changed(identity=small_identity(extra=(("salt", "x"),))),
        bundle.changed(prefix=PrefixHash.of([1] * 10)),
        small_bundle(prefix=PrefixHash.of(list(range(9)))),
    ]
    assert len({b.key for b in [bundle, *others]}) == 5
    assert re.fullmatch(r"[a-z0-9-]+", bundle.key)


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    file = tmp_path / "b.safetensors"
    save_bundle(small_bundle(0), file)
    wrong: list[str] = []

    def read() -> None:
        for _ in range(60):
            try:
                load_bundle(file)
            except KdalabError as error:
                wrong.append(str(error))

    reader = threading.Thread(target=read)
    reader.start()
    for seed in range(20):
        save_bundle(small_bundle(seed), file)
    reader.join()
    assert wrong == []


def test_a_write_that_breaks_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = save_bundle(small_bundle(), tmp_path / "b.safetensors")
    before = file.read_bytes()
    with pytest.raises(TypeError):
        write_atomically(file, [b"half of it", "no bytes"])  # type: ignore[list-item]
    assert file.read_bytes() == before
    assert [f.name for f in tmp_path.iterdir()] == ["b.safetensors"]


def test_metadata_is_read_without_the_tensors(tmp_path: Path) -> None:
    file = save_bundle(small_bundle(), tmp_path / "b.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1  # in a tensor: only who reads that finds it
    file.write_bytes(data)
    meta, shapes = load_metadata(file)
    assert meta.prefix.boundary == 10
    assert shapes["recurrent"] == ("float32", (2, 4, 6, 5))
    with pytest.raises(BundleFormatError, match="checksum"):
        load_bundle(file)
