"""The book builds strictly, links only to what is there, and its tables say what the tree has."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "mechanisms").glob("*.md"))
GLOSSARY = tomllib.loads((DOCS / "glossary.toml").read_text("utf-8"))
SYSTEMS = ("sglang", "vllm")


def front_matter(page: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = yaml.safe_load(page.read_text("utf-8").split("---\n")[1])
    return found


def table_cells(page: Path) -> Iterator[tuple[str, str]]:
    """(system, cell) of the page's table of names."""
    section = page.read_text("utf-8").split("## In SGLang", 1)[1].split("\n## ")[0]
    for row in section.splitlines():
        if row.startswith("|") and not row.startswith("|--"):
            yield from zip(SYSTEMS, row.strip("|").split("|")[1:3], strict=False)


def symbols(text: str) -> set[str]:
    """Backticked words that look like a name in code: an underscore or a capital."""
    return {w for w in re.findall(r"`([^`]+)`", text) if re.fullmatch(r"\w*[_A-Z]\w*", w)}


def listed(kind: str) -> set[str]:
    """All of one kind that ``glossary.toml`` has."""
    terms = (name for term in GLOSSARY["term"] for name in term.get(kind, ()))
    return {*terms, *GLOSSARY["symbols"][kind]}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_names_of_a_mechanism_are_looked_up_or_marked_as_older(page: Path) -> None:
    for system, cell in table_cells(page):
        now = re.sub(r"\(older:[^)]*\)", "", cell)
        assert symbols(now) <= listed(system), (system, cell)
        for older in re.findall(r"\(older: ([^)]*)\)", cell):
            assert symbols(older) <= listed("other"), (system, cell)


def test_the_reading_list_and_the_glossary_speak_of_the_same_versions() -> None:
    sources = tomllib.loads((ROOT / "kdalab/sources/sources.toml").read_text("utf-8"))
    seen = {name.lower(): version for name, version in GLOSSARY["versions"].items()}
    assert seen == {name: sources["systems"][name]["seen"] for name in SYSTEMS}


def test_what_the_glossary_calls_ours_is_defined_in_the_tree() -> None:
    defined: set[str] = set()
    for folder in ("kdalab", "kernels/kdalab_kernels"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    defined.add(node.name)
                elif isinstance(node, ast.Assign):
                    defined.update(t.id for t in node.targets if isinstance(t, ast.Name))
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    defined.add(node.target.id)
    ours = {name for term in GLOSSARY["term"] for name in term.get("kdalab", ())}
    assert ours <= defined, ours - defined


def test_every_term_has_its_own_name_in_three_languages() -> None:
    for lang in ("en", "zh", "ko"):
        names = [term[lang] for term in GLOSSARY["term"]]
        assert len(set(names)) == len(names), lang
    for term in GLOSSARY["term"]:
        assert re.search(r"[\u4e00-\u9fff]", term["zh"]) or term["zh"].isascii(), term["zh"]
        assert term["meaning"].endswith("."), term["en"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_mechanism_names_a_demo_or_says_that_there_is_none(page: Path) -> None:
    assert front_matter(page)["demo"] or "no demo page" in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("field", "folder", "glob", "prefix"),
    [("notebook", "notebooks", "*.ipynb", ""), ("figure", "plot_scripts", "plot_*.py", "plot_")],
)
def test_every_notebook_and_figure_belongs_to_a_mechanism(
    field: str, folder: str, glob: str, prefix: str
) -> None:
    named = {name for page in PAGES for name in front_matter(page)[field]}
    there = {file.stem.removeprefix(prefix) for file in (ROOT / folder).glob(glob)}
    assert there <= named, f"name them in docs/mechanisms/*.md: {sorted(there - named)}"


def test_notebooks_link_to_notebooks_that_a_mechanism_names() -> None:
    named = {name for page in PAGES for name in front_matter(page)["notebook"]}
    for file in (ROOT / "notebooks").glob("*.ipynb"):
        linked = re.findall(r"\]\((\w+)\.ipynb\)", file.read_text("utf-8"))
        assert set(linked) <= named, (file.name, set(linked) - named)


def test_every_page_of_the_demos_belongs_to_a_mechanism() -> None:
    tree = ast.parse((ROOT / "demos" / "_pages.py").read_text("utf-8"))
    modules = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "MODULES"
    )
    assert set(modules) <= {name for page in PAGES for name in front_matter(page)["demo"]}


class _Page(HTMLParser):
    """Targets, anchors and tables of one page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.links: list[tuple[str, str]] = []
        self.ids: set[str] = set()
        self.rows: list[list[str]] = []
        self._cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.add(str(given["id"]))
        for key in ("href", "src"):
            if given.get(key) is not None and tag in ("a", "img", "link", "script", "iframe"):
                self.links.append((tag, str(given[key])))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data: str) -> None:
        if self._cell and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs_jupyter", reason="the book needs the extra 'docs'")
    out = tmp_path_factory.mktemp("book") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(out)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout + done.stderr == ""
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, _Page]:
    read = {}
    for file in site.rglob("*.html"):
        page = _Page()
        page.feed(file.read_text("utf-8"))
        read[file] = page
    return read


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_internal_link_leads_to_a_page_and_an_anchor(
    site: Path, pages: dict[Path, _Page]
) -> None:
    assert len(pages) > 50
    broken = []
    for file, page in pages.items():
        if file.name == "404.html":
            continue
        for _, link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link.startswith("data:"):
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if target.is_dir():
                target = target / "index.html"
            if not target.is_file():
                broken.append(f"{file.relative_to(site)} -> {link}")
            elif (
                parts.fragment
                and target in pages
                and not parts.fragment.startswith("__")  # the theme's own switches
                and unquote(parts.fragment) not in pages[target].ids
            ):
                broken.append(f"{file.relative_to(site)} -> {link} (anchor)")
    assert broken == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_page_asks_another_host_for_anything(site: Path, pages: dict[Path, _Page]) -> None:
    asked = {
        link
        for page in pages.values()
        for tag, link in page.links
        if tag != "a" and urlsplit(link).netloc and "rel=canonical" not in link
    }
    assert asked == set()
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text("utf-8")), style


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_status_table_is_what_the_tree_has(site: Path, pages: dict[Path, _Page]) -> None:
    rows = {row[0]: row for row in pages[site / "status.html"].rows if len(row) == 7}
    for page in PAGES:
        said = front_matter(page)
        title = re.search(r"^# (.+)$", page.read_text("utf-8"), re.MULTILINE)
        assert title is not None
        row = rows[title[1]]
        files = [
            f
            for c in said["code"]
            for f in ((ROOT / c).rglob("*.py"), [ROOT / c])[c.endswith(".py")]
        ]
        lines = sum(len(f.read_text("utf-8").splitlines()) for f in files)
        assert row[1] == f"{len(files)} file{'s' * (len(files) > 1)}, {lines:,} lines"
        assert int(row[2].replace(",", "")) > 0, f"{title[1]}: no test imports its code"
        books = [n for n in said["notebook"] if (ROOT / f"notebooks/{n}.ipynb").is_file()]
        plots = [n for n in said["figure"] if (ROOT / f"plot_scripts/plot_{n}.py").is_file()]
        assert row[3] == (", ".join(said["demo"]) or "-")
        assert row[4] == (", ".join(books) or "-")
        assert row[5] == (", ".join(plots) or "-")
    assert len(rows) == len(PAGES) + 1  # and the head
