"""**PD and EPD transfer**: latent KV piece by piece, the state once, and what is refused.

``python -m demos.transfer`` opens this page alone.
"""

from __future__ import annotations

import gradio as gr

from demos import _page
from demos._controls import Choice, Settings, Switches
from demos._film import Film
from demos._lesson import Lesson
from demos._transfer_film import TransferFilm
from demos._transfer_matrix import MatrixFilm
from kdalab.engine import receiving
from kdalab.lessons import TRANSFER_FAULTS, play_transfer
from kdalab.serve.incoming import Incoming
from kdalab.serve.outgoing import PrefillRole
from kdalab.transfer import refusal_matrix
from kdalab.transfer.worth import break_even

RATES = (2_000, 10_000, 50_000)


def film(settings: Settings) -> Film:
    """The film of one setting. An embedding of another image needs an image, so it makes it EPD."""
    breaks, way = settings["breaks"], settings["way"]
    if way == "matrix":
        return MatrixFilm(settings["rate"])
    faults = tuple(f for f in TRANSFER_FAULTS if f in breaks)
    way = "epd" if "image" in faults else way
    run = play_transfer(way, settings["chunk"], settings["have"], faults, "early" in breaks)
    return TransferFilm(run, settings["rate"])


LESSON = Lesson(
    slug="transfer",
    group="systems",
    controls=(
        Choice("way", ("pd", "epd", "matrix"), "pd", 220),
        Choice("chunk", (64, 128, 256), 64),
        Choice("have", (0, 64, 128, 192), 64),
        Choice("rate", RATES, 10_000),
        Switches("breaks", ("early", *TRANSFER_FAULTS)),
    ),
    film=film,
    figures=1,
    legend=False,
    terms=(
        (
            "pieces while prefill goes on",
            "PD transfer by chunk",
            "KV connector, in chunks",
        ),
        (
            "the state, once",
            "`StateType.MAMBA`, with the last chunk",
            "NIXL: the last mamba state always",
        ),
        (
            "only missing latent KV travels",
            "decode matches KV alone, `_match_prefix_and_lock`",
            "NIXL: attention blocks that are missing",
        ),
        (
            "slot before the state",
            "`HybridMambaDecodeReqToTokenPool` preallocates",
            "blocks before the transfer",
        ),
        ("conv by q, k, v", "`conv_shard_groups`, `conv_slice_axis`", "three-read conv (NIXL)"),
        ("EPD", "encode instances", "encoder cache, EC connector"),
    ),
    code=(
        ("code-out", PrefillRole._advance),
        ("code-in", Incoming.take),
        ("code-land", receiving.land_state),
        ("code-matrix", refusal_matrix),
        ("code-worth", break_even),
    ),
    notebook="moving_state",
    exercises=("ex22", "ex23"),
    next=("joint", "unified", "invariants"),
)


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
