"""**Trace lab**: a workload of one's own, its honest account, what memory buys, and the flags that
fit it.

``python -m demos.lab`` opens this page alone.
"""

from __future__ import annotations

import gradio as gr

from demos import _page, _work
from demos._controls import Choice, Number, Settings, Switches
from demos._film import Film
from demos._lab_film import LabFilm
from demos._lesson import Lesson
from demos._trace_note import trace_note
from demos._uploads import UPLOADS, Upload
from kdalab.lab.advise import advise
from kdalab.lab.hardware import HARDWARE
from kdalab.lab.run import replay_setup
from kdalab.lab.setup import Setup
from kdalab.lessons.trace_lab import LAB_TRACES, play_built_in, play_lab
from kdalab.lessons.uploads import UploadedTrace, read_upload

GIB = 2**30
SYSTEMS = {"both": ("SGLang", "vLLM"), "SGLang": ("SGLang",), "vLLM": ("vLLM",)}
REQUESTS = (100, 250, 500, 1000, 2500, 5000, 10_000, 20_000)


def film(settings: Settings) -> Film:
    """The film of one setting; a file of the visitor's own where the trace says so.

    Raises:
        KdalabError: as ``play_lab``, or there is no such file.
        StoppedError: the visitor stopped it.
    """
    setup = Setup(
        model=settings["model"], memory=settings["memory"] * GIB, hardware=settings["hardware"],
        checkpoints=settings["checkpoints"], arrivals=settings["arrivals"] == "clock",
    )  # fmt: skip
    objective, systems = settings["objective"], SYSTEMS[settings["system"]]
    broken = "defaults" in settings["breaks"]
    name = settings["trace"]
    if name != "file":
        run = play_built_in(name, setup, objective, systems)
        count = LAB_TRACES[name]
        return LabFilm(run, broken, f"--made-up {name}:{count}", None, count, False)
    own: UploadedTrace = UPLOADS.get(settings["file"])
    trace = own.first(settings["requests"])

    def at(what: str, done: int, total: int | None) -> None:
        known = "-of" if total else ""
        _work.at(f"lab.at-{what}{known}", done, total)

    run = play_lab(trace, setup, objective, systems, at)
    count, total = len(trace.requests), len(own.trace.requests)
    return LabFilm(run, broken, own.name, count, total, own.more, own.back > 0)


LESSON = Lesson(
    slug="lab",
    group="systems",
    controls=(
        Choice("trace", tuple(LAB_TRACES), "agent-like", width=200, own="file"),
        Choice("requests", REQUESTS, 500, width=140),
        Choice(
            "model", ("kimi-k3", "kimi-linear-48b", "glm-5.3-flash", "qwen3-next-80b"), "kimi-k3"
        ),
        Number("memory", 4, 2048, 16),
        Choice("objective", ("flops", "ttft"), "flops"),
        Choice("arrivals", ("one", "clock"), "one"),
        Choice("system", tuple(SYSTEMS), "both", width=120),
        Choice("hardware", tuple(HARDWARE), "h200x16", width=130),
        Choice(
            "checkpoints",
            ("leaf", "leaf+branch", "every:4096", "every:16384", "branch-first:8192"),
            "leaf+branch",
        ),
        Switches("breaks", ("defaults",)),
        Upload("file", _page.MAX_UPLOAD_BYTES, read_upload, trace_note, "trace"),
    ),
    film=film,
    figures=2,
    legend=False,
    long=True,
    terms=(
        ("placement", "`--chunked-prefill-size`", "`--prefix-cache-retention-interval`"),
        ("split of memory", "`--mamba-full-memory-ratio`", "one pool"),
        ("INT8 checkpoints", "`--enable-int8-mamba-checkpoint`", "none"),
        ("retention", "`--mamba-max-states-per-path`", "least recent use"),
    ),
    code=(("code-replay", replay_setup), ("code-advise", advise)),
    notebook="density",
    next=("density", "compare"),
)  # fmt: skip


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
