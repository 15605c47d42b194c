"""The reading list of other projects: complete, with files of ours, found in a checkout."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kdalab.cli.sources import app
from kdalab.errors import KdalabError
from kdalab.sources import Found, check_checkout, load_sources

ROOT = Path(__file__).resolve().parents[2]
RUN = CliRunner()


def test_every_entry_points_at_a_file_of_ours_and_below_its_package() -> None:
    systems, symbols = load_sources()
    assert set(systems) == {s.system for s in symbols} == {"fla", "sglang", "vllm"}
    for symbol in symbols:
        assert (ROOT / symbol.ours).is_file(), symbol
        assert symbol.file.startswith(systems[symbol.system].package + "/"), symbol
        assert symbol.why, symbol
    assert len({(s.system, s.name) for s in symbols}) == len(symbols)


@pytest.mark.skipif(find_spec("fla") is None, reason="fla-core is not installed")
def test_the_list_of_fla_is_right_for_the_installed_fla() -> None:
    spec = find_spec("fla")
    assert spec is not None
    (folder,) = spec.submodule_search_locations or []
    system, found = check_checkout(Path(folder))
    assert system.key == "fla"
    assert {f.symbol.name: f.status for f in found} == dict.fromkeys(
        (s.name for s in load_sources()[1] if s.system == "fla"), "there"
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A vLLM in which one name stays, one moves, one is only used, and one is only a part."""
    files = {
        "vllm/v1/kv_cache_interface.py": "import x\n\n@y\nclass MambaSpec(X):\n    pass\n",
        "vllm/v1/core/other.py": "class BlockPool:\n    pass\nMLAAttentionSpec()\n",
        "vllm/v1/core/deep/a.py": "    def find_longest_cache_hit_of_all(): ...\n",
        "vllm/v1/request.py": "class R:\n    def f(self):\n        self.shared_prefix_boundary = 0",
        "vllm/notes.md": "class HybridKVCacheCoordinator\n",
    }
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def by_name(found: list[Found]) -> dict[str, Found]:
    return {f.symbol.name: f for f in found}


def test_there_moved_mentioned_and_gone_are_told_apart(checkout: Path) -> None:
    system, found = check_checkout(checkout)
    names = by_name(found)
    assert system.key == "vllm"
    assert (names["MambaSpec"].status, names["MambaSpec"].places) == (
        "there", ("vllm/v1/kv_cache_interface.py:4",)
    )  # fmt: skip
    assert (names["BlockPool"].status, names["BlockPool"].places) == (
        "moved", ("vllm/v1/core/other.py:1",)
    )  # fmt: skip
    assert (names["MLAAttentionSpec"].status, names["MLAAttentionSpec"].places) == (
        "mentioned", ("vllm/v1/core/other.py:3",)
    )  # fmt: skip
    assert names["find_longest_cache_hit"].status == "gone"
    assert names["HybridKVCacheCoordinator"].status == "gone"
    assert names["shared_prefix_boundary"].places == ("vllm/v1/request.py:3",)


def test_a_checkout_is_known_by_its_package_folder_and_below_python(checkout: Path) -> None:
    assert check_checkout(checkout / "vllm")[0].key == "vllm"
    inner = checkout / "repo" / "python"
    inner.mkdir(parents=True)
    (checkout / "vllm").rename(inner / "vllm")
    assert check_checkout(checkout / "repo")[0].key == "vllm"


def test_links_are_not_followed(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "pool.py"
    outside.write_text("class HybridKVCacheCoordinator: ...\n")
    (checkout / "vllm" / "link.py").symlink_to(outside)
    (checkout / "vllm" / "folder").symlink_to(outside.parent)
    assert by_name(check_checkout(checkout)[1])["HybridKVCacheCoordinator"].status == "gone"


@pytest.mark.parametrize("what", ["missing", "empty", "file"])
def test_what_is_no_checkout_is_refused_and_says_what_was_looked_for(
    what: str, tmp_path: Path
) -> None:
    path = tmp_path / what
    if what == "empty":
        path.mkdir()
    elif what == "file":
        path.write_text("")
    with pytest.raises(KdalabError, match="checkout") as error:
        check_checkout(path)
    if what == "empty":
        assert "vllm/v1/core" in str(error.value)


def test_the_command_exits_with_1_when_something_has_moved(checkout: Path) -> None:
    shown = RUN.invoke(app, ["check", str(checkout)])
    assert shown.exit_code == 1
    assert "moved: defined elsewhere" in shown.stdout
    data = json.loads(RUN.invoke(app, ["check", str(checkout), "--json"]).stdout)
    assert data["system"] == "vllm"
    assert {s["status"] for s in data["symbols"]} == {"there", "moved", "mentioned", "gone"}


def test_the_list_is_printed_in_reading_order_for_one_or_all_systems() -> None:
    listed = json.loads(RUN.invoke(app, ["list", "--json"]).stdout)
    assert [e["name"] for e in listed] == [s.name for s in load_sources()[1]]
    shown = RUN.invoke(app, ["list", "vllm"])
    assert "MambaSpec" in shown.stdout
    assert "StateType" not in shown.stdout
    assert isinstance(RUN.invoke(app, ["list", "tgi"]).exception, KdalabError)
