"""**Three states**: what each kind of state of a hybrid model weighs, from its real config.

``python -m demos.sizes`` opens this page alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import gradio as gr

from demos import _page
from demos._controls import Choice, Settings, Switches, Text
from demos._film import Film, why_panel
from demos._lesson import Lesson
from demos._text import t
from kdalab.errors import KdalabError
from kdalab.phrases import say
from kdalab.spec import PRESETS, ModelSpec, spec_from_hf_config, state_sizes
from kdalab.spec.strict_json import parse_json
from kdalab.units import format_bytes
from kdalab.viz.bytes_bars import Bar, bytes_bars_svg
from kdalab.viz.state_vs_kv import state_vs_kv_figure
from kdalab.viz.svg import esc
from kdalab.viz.tables import Table

_STEPS = ("kv", "recurrent", "conv", "checkpoint", "equal", "store", "int8")


class SizesFilm(Film):
    """One model, kind after kind."""

    def __init__(self, spec: ModelSpec, context: int, interval: int, tp: int, everywhere: bool):
        self.spec, self.context, self.interval, self.tp = spec, context, interval, tp
        self.sizes = state_sizes(spec, tp_size=tp)
        self.everywhere = everywhere
        self.kinds = [*_STEPS, *["everywhere"] * everywhere]
        self.last = len(self.kinds) - 1
        self.opening = self.last if everywhere else _STEPS.index("equal")

    def _values(self) -> dict[str, Any]:
        s, context = self.sizes, self.context
        count = context // self.interval
        return {
            "model": self.spec.name,
            "linear": s.num_linear_layers,
            "full": s.num_full_layers,
            "context": context,
            "interval": self.interval,
            "count": count,
            "token": format_bytes(s.latent_bytes_per_token),
            "kv": format_bytes(s.latent_bytes(context)),
            "recurrent": format_bytes(s.recurrent_bytes),
            "conv": format_bytes(s.conv_bytes),
            "checkpoint": format_bytes(s.checkpoint_bytes),
            "int8": format_bytes(s.checkpoint_int8_bytes),
            "equals": s.checkpoint_equals_tokens,
            "equals8": s.checkpoint_int8_equals_tokens,
            "store": format_bytes(s.checkpoint_store_bytes(context, self.interval)),
            "store8": format_bytes(s.checkpoint_store_bytes(context, self.interval, int8=True)),
            "every": format_bytes(s.checkpoint_bytes * context),
        }

    def _key(self, step: int) -> str:
        kind = self.kinds[step]
        none = kind in ("store", "int8") and self.interval > self.context
        return f"{kind}-none" if none else kind

    def sentence(self, step: int, lang: str) -> str:
        return t(lang, f"sizes.step-{self._key(step)}", **self._values())

    def tone(self, step: int) -> str:
        return "evict" if self.kinds[step] == "everywhere" else "plain"

    def _bars(self, step: int, lang: str) -> list[Bar]:
        s, kind, values = self.sizes, self.kinds[step], self._values()

        def name(key: str) -> str:
            return t(lang, f"sizes.bar-{key}", **values)

        kv = Bar(
            name("kv"), (("kv", s.latent_bytes(self.context), name("kv")),), marked=kind == "kv"
        )
        one = Bar(
            name("checkpoint"),
            (("s", s.recurrent_bytes, name("s")), ("c", s.conv_bytes, name("c"))),
            t(lang, "sizes.note-checkpoint", **values),
            kind in ("recurrent", "conv", "checkpoint", "equal"),
        )
        bars = [kv, one]
        if kind == "equal":
            same = s.latent_bytes(s.checkpoint_equals_tokens)
            bars.append(Bar(name("equal"), (("kv", same, name("equal")),), marked=True))
        if kind in ("store", "int8", "everywhere"):
            n = self.context if kind == "everywhere" else self.context // self.interval
            parts = (("s", n * s.recurrent_bytes, name("s")), ("c", n * s.conv_bytes, name("c")))
            bars.append(
                Bar(name("everywhere" if kind == "everywhere" else "store"), parts, marked=True)
            )
        if kind == "int8":
            n = self.context // self.interval
            whole = n * s.checkpoint_int8_bytes
            parts = (
                ("s", whole - n * s.conv_bytes, name("s8")),
                ("c", n * s.conv_bytes, name("c")),
            )
            bars.append(Bar(name("store8"), parts, marked=True))
        return bars

    def picture(self, step: int, lang: str) -> str:
        shown = bytes_bars_svg(
            self._bars(step, lang),
            label=self.sentence(step, lang),
            scale_word=t(lang, "sizes.scale" if self.tp == 1 else "sizes.scale-rank", tp=self.tp),
        )
        return f'<div class="kd-scroll">{shown}</div>'

    def why(self, step: int, lang: str) -> str:
        values = self._values()
        now = f'<p class="now">{esc(self.sentence(step, lang))}</p>'
        reason = f"<p>{esc(t(lang, f'sizes.why-{self._key(step)}', **values))}</p>"
        source = f'<p class="muted">{esc(self.spec.source)}</p>'
        notes = "".join(f'<p class="muted">{esc(say(lang, note))}</p>' for note in self.spec.notes)
        return why_panel(
            (t(lang, "common.in-step"), now), (t(lang, "sizes.why"), reason), source + notes
        )

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        s = self.sizes
        n, full = s.num_linear_layers, s.num_full_layers
        rows = [
            ("recurrent", s.recurrent_bytes, n),
            ("conv", s.conv_bytes, n),
            ("checkpoint", s.checkpoint_bytes, n),
            ("int8", s.checkpoint_int8_bytes, n),
            ("token", s.latent_bytes_per_token, full),
        ]
        columns = tuple(t(lang, f"sizes.column-{c}") for c in ("what", "bytes", "layer", "layers"))
        named = tuple(
            (t(lang, f"sizes.row-{key}"), size, size // layers, layers)
            for key, size, layers in rows
        )
        return (Table(t(lang, "sizes.table", **self._values()), columns, named),)

    def figures(self, lang: str) -> Sequence[Any]:
        top = max(4096, min(1 << 20, self.spec.max_context))
        return [
            state_vs_kv_figure([self.spec], context=(256, top), tp_size=self.tp,
                               interval=self.interval, height=420)
        ]  # fmt: skip

    def data(self) -> dict[str, Any]:
        return {**self.sizes.to_dict(), "context": self.context, "interval": self.interval}


def _config(pasted: str) -> Any:
    """The pasted JSON.

    Raises:
        KdalabError: it is no JSON, or JSON that states a key twice or nests too deep.
    """
    try:
        return parse_json(pasted, "the pasted config")
    except KdalabError:
        raise
    except json.JSONDecodeError as error:
        raise KdalabError(
            f"the pasted config is not JSON: {error.msg} at line {error.lineno}, column "
            f"{error.colno}. Paste a whole config.json"
        ) from error
    except RecursionError as error:
        raise KdalabError(
            "the pasted config nests too many brackets; a config.json has only a few levels"
        ) from error
    except ValueError as error:  # Python parses whole numbers up to a count of digits
        raise KdalabError(
            "the pasted config has a number of thousands of digits; no size is that large"
        ) from error


def film(settings: Settings) -> Film:
    """The film of one setting; a pasted config counts before the chosen model.

    Raises:
        KdalabError: a config that is no JSON or of another family, or a tp size that does not fit.
    """
    pasted = settings["config"].strip()
    if pasted:
        spec = spec_from_hf_config(_config(pasted))
    else:
        spec = PRESETS[settings["model"]]
    everywhere = "everywhere" in settings["breaks"]
    return SizesFilm(spec, settings["context"], settings["interval"], settings["tp"], everywhere)


LESSON = Lesson(
    slug="sizes",
    group="state",
    controls=(
        Choice("model", tuple(PRESETS), "kimi-k3", width=180),
        Choice("context", (4096, 16384, 32768, 131072, 1048576), 32768),
        Choice("interval", (512, 1024, 4096, 8192, 16384), 8192),
        Choice("tp", (1, 2, 4, 8), 1, width=120),
        Switches("breaks", ("everywhere",)),
        Text("config", limit=200_000, lines=3),
    ),
    film=film,
    figures=1,
    legend=False,
    terms=(
        (
            "latent KV of a token",
            "`kv_lora_rank + qk_rope_head_dim`",
            "`MLAAttentionSpec` page / block",
        ),
        ("checkpoint", "one slot of the mamba pool", "`MambaSpec` page, `page_size_bytes`"),
        ("INT8 checkpoint", "`--enable-int8-mamba-checkpoint`", "-"),
    ),
    code=(("code-sizes", state_sizes), ("code-config", spec_from_hf_config)),
    notebook="mental",
    exercises=("ex01", "ex02"),
    next=("joint", "density", "int8"),
)


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
