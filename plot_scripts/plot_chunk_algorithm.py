"""The chunk form of KDA as a diagram: each chunk is a map of the state, and maps are joined.

python plot_scripts/plot_chunk_algorithm.py --tokens 256 --pieces 4 --out chunk_algorithm.svg
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from kdalab.errors import KdalabError
from kdalab.lessons import DECAYS, play_chunks
from kdalab.viz.chunks import Labelled, chunks_svg
from kdalab.viz.drawing import Drawing
from kdalab.viz.figure_words import figure_words
from kdalab.viz.plot_script import PlotScript


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, default=256, help="in all, at most 4,096")
    parser.add_argument("--pieces", type=int, default=4, help="chunks, 2 to 6")
    parser.add_argument("--decay", choices=tuple(DECAYS), default="slow", help="of a token")
    parser.add_argument("--seed", type=int, default=0, help="of the random tokens")


def build(args: argparse.Namespace) -> Drawing:
    if not 2 <= args.pieces <= 6 or args.tokens > 4096:
        raise KdalabError(
            f"{args.pieces} chunks of {args.tokens:,} tokens; use 2 to 6 chunks and at most "
            "4,096 tokens"
        )
    run = play_chunks(args.tokens, args.pieces, args.decay, 0, args.seed)
    words = figure_words("chunk_algorithm", args.lang)
    cuts, last = [0, *(s.end for s in run.spans)], args.pieces - 1

    def matrix(name: str, values: Any, limit: float = 0.0) -> Labelled:
        return Labelled(name, f"{name}: {abs(values).max():.3g}", values, limit)

    def picture(key: str, groups: list[tuple[int, int]], marked: list[int], formula: list) -> tuple:
        text = words[key].format(error=f"{run.difference(run.tree):.1g}", tokens=args.tokens)
        svg = chunks_svg(
            cuts, groups, list(range(args.pieces)), marked, formula, label=text,
            tokens_word=words["tokens"],
        )  # fmt: skip
        return text, svg

    first, pair = run.spans[0], run.pairs[0]
    size = run.size
    states: list[Labelled | str] = []
    for i, state in enumerate(run.states):
        states += [matrix(f"S{i}", state, size), "→"]
    parts = (
        picture(
            "maps",
            [(i, i) for i in range(args.pieces)],
            list(range(args.pieces)),
            [m for i, s in enumerate(run.spans[:4]) for m in
             (matrix(f"M{i + 1}", s.M), matrix(f"b{i + 1}", s.b, size))],
        ),
        picture(
            "compose",
            [(0, 1)],
            [0, 1],
            [matrix("M2", run.spans[1].M), "×", matrix("M1", first.M), "=",
             matrix("M2 M1", pair.M), ";", "", matrix("M2 b1 + b2", pair.b, size)],
        ),
        picture("carry", [(0, last)], list(range(args.pieces)), states[:-1]),
        picture(
            "same",
            [(0, last)],
            list(range(args.pieces)),
            [matrix(words["joined"], run.tree.b, size), "−",
             matrix(words["direct"], run.direct, size), "=",
             matrix(words["difference"], run.tree.b - run.direct, size)],
        ),
    )  # fmt: skip
    rows = tuple(
        (str(i + 1), f"{s.start:,} - {s.end:,}", f"{abs(s.M).max():.3g}", f"{abs(s.b).max():.3g}",
         f"{abs(run.states[i + 1]).max():.3g}")
        for i, s in enumerate(run.spans)
    )  # fmt: skip
    columns = tuple(words[k] for k in ("chunk", "tokens", "largest-m", "largest-b", "largest-s"))
    return Drawing(words["title"], parts, columns, rows)


SCRIPT = PlotScript(
    name="chunk_algorithm",
    title="The chunk form of KDA: chunks are maps, and maps are joined in order",
    build=build,
    add_arguments=add_arguments,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
