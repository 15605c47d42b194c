"""What mkdocs cannot do by itself: notebooks, figures and code as parts of the book.

Markdown may say

* ``{{ figure NAME }}``: the figure that ``kdalab plot NAME`` draws, in both themes;
* ``{{ demo SLUG }}``: a link to a page of the demos on this machine;
* ``{{ notebook NAME }}``: a link to a notebook of the book; ``{{ notebooks }}``: a table of all;
* ``{{ figures }}``: every figure of a mechanism that its page does not place itself;
* ``{{ glossary }}``: the terms of ``docs/glossary.toml``;
* ``{{ api kdalab.spec }}``: the public names of a package or module, from their docstrings;
* `` `kdalab/cache/radix.py` ``, any file of the tree: a link to its code.

A name that the tree does not have stops the build, so the book cannot point at what is gone.
"""

from __future__ import annotations

import argparse
import ast
import html
import json
import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).resolve().parents[2]
DEMOS = "http://127.0.0.1:7860"

_TAG = re.compile(r"\{\{ (figure|demo|notebook) ([\w-]+) \}\}")
_PLACED = re.compile(r"\{\{ figure ([\w-]+) \}\}")
_API = re.compile(r"\{\{ api ([\w.]+) \}\}")
_CODE = re.compile(
    r"(?<![\[`])`((?:kdalab|kernels|demos|plot_scripts)/[\w/.-]+\.(?:py|toml|css))`(?!\])"
)

sys.path[:0] = [str(ROOT), str(ROOT / "kernels"), str(Path(__file__).parent)]

import elsewhere  # noqa: E402
import glossary  # noqa: E402
import status  # noqa: E402
from api import api  # noqa: E402

from kdalab.viz.drawing import Drawing  # noqa: E402


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every mechanism and every notebook of the tree into the navigation."""
    if config.nav:
        elsewhere.fill_nav(config.nav)
    return config


@event_priority(100)  # before the plugin that turns notebooks into pages
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what stands elsewhere in the tree, and what is made of it."""
    for notebook in elsewhere.notebooks():
        files.append(File(f"notebooks/{notebook.name}", str(ROOT), config.site_dir, False))
    for page in elsewhere.PAGES:
        files.append(File.generated(config, page, content=elsewhere.moved(page)))
    for name in _figures():
        for theme in ("light", "dark"):
            text = _draw(name, theme)
            files.append(File.generated(config, f"assets/figures/{name}.{theme}.js", content=text))
    plotly = _plotly()
    files.append(File.generated(config, "assets/plotly.min.js", abs_src_path=str(plotly)))
    for one in status.mechanisms():
        status.look_up(one, _demos())
    files.append(File.generated(config, "status.md", content=status.status_page()))
    for path in sorted(_code_named(files)):
        files.append(File.generated(config, f"code/{path}.md", content=_code_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put figures and links in the places of their tags."""
    if page.file.src_uri.startswith("code/") or page.file.src_uri.endswith(".ipynb"):
        return markdown
    for one in status.mechanisms():
        if page.file.src_uri == f"mechanisms/{one.slug}.md":
            title, _, rest = markdown.lstrip().partition("\n")
            placed = set(_PLACED.findall(rest))
            left = [f"{{{{ figure {name} }}}}" for name in one.figure if name not in placed]
            rest = rest.replace("{{ figures }}", "\n\n".join(left))
            markdown = f"{title}\n\n{status.box(one)}\n{rest}{status.following(one)}"
    markdown = _API.sub(lambda match: api(match[1]), markdown)
    if "{{ glossary }}" in markdown:
        markdown = markdown.replace("{{ glossary }}", glossary.table())
    markdown = markdown.replace("{{ notebooks }}", elsewhere.notebook_list())

    def tag(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "figure":
            return _figure(name, page)
        if kind == "demo":
            if name not in _demos():
                raise PluginError(f"{page.file.src_uri}: no page {name!r} of the demos")
            return f"[`{name}`]({DEMOS}/{name})"
        target = f"notebooks/{name}.ipynb"
        if files.get_file_from_path(target) is None:
            raise PluginError(f"{page.file.src_uri}: no notebook {name!r}")
        return f"[`{name}`]({_up(page)}{target})"

    def code(match: re.Match[str]) -> str:
        path = match[1]
        return f"[`{path}`]({_up(page)}code/{path}.md)" if (ROOT / path).is_file() else match[0]

    return _CODE.sub(code, _TAG.sub(tag, markdown))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Mend what the notebook converter leaves."""
    return elsewhere.mended(output) if page.file.src_uri.endswith(".ipynb") else output


def _up(page: Page) -> str:
    return "../" * page.file.src_uri.count("/")


@lru_cache(maxsize=1)
def _figures() -> tuple[str, ...]:
    from kdalab.resources import plot_script_names

    return tuple(plot_script_names())


@lru_cache(maxsize=1)
def _demos() -> frozenset[str]:
    """Modules of the hub, read from its list without importing it."""
    tree = ast.parse((ROOT / "demos" / "_pages.py").read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "MODULES":
            return frozenset(ast.literal_eval(node.value))
    raise PluginError("demos/_pages.py has no MODULES")


def _draw(name: str, theme: str) -> str:
    script = _script(name)
    args: argparse.Namespace = script.parser().parse_args(["--theme", theme])
    figure = script.build(args)
    data = (
        json.dumps({"svg": figure.svg(theme)}) if isinstance(figure, Drawing) else figure.to_json()
    )
    # A script and no JSON: a browser lets a page from the disk load the one and not the other.
    key = json.dumps(f"{name}.{theme}")
    return f"(window.klFigures ||= {{}})[{key}] = {data};"


@lru_cache(maxsize=64)
def _script(name: str) -> Any:
    from kdalab.resources import load_script

    return load_script(name).SCRIPT


def _figure(name: str, page: Page) -> str:
    if name not in _figures():
        raise PluginError(f"{page.file.src_uri}: no plot script {name!r}")
    base = get_relative_url("assets", page.url)
    title = html.escape(_script(name).title)
    return (
        '<figure class="kl-figure"><div class="kl-scroll">'
        f'<div class="kl-plot" data-figure="{base}/figures/{name}" '
        f'data-plotly="{base}/plotly.min.js" role="img" aria-label="{title}"></div></div>'
        f"<figcaption>{title}. <code>kdalab plot {name}</code></figcaption></figure>"
    )


def _plotly() -> Path:
    import plotly

    return Path(plotly.__file__).parent / "package_data" / "plotly.min.js"


def _code_named(files: Files) -> set[str]:
    found: set[str] = set()
    for file in files.documentation_pages():
        if file.src_uri.endswith(".md"):
            found.update(_CODE.findall(file.content_string))
    found.update(c for one in status.mechanisms() for c in one.code if c.endswith(".py"))
    return {path for path in found if (ROOT / path).is_file()}


def _code_page(path: str) -> str:
    text = (ROOT / path).read_text("utf-8")
    kind = {"py": "python", "toml": "toml", "css": "css"}[path.rpartition(".")[2]]
    return (
        f"---\nsearch:\n  exclude: true\nhide: [navigation]\n---\n# `{path}`\n\n"
        f'``````{{ .{kind} linenums="1" }}\n{text}\n``````\n'
    )
