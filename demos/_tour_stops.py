"""The tour's stops: a doubt, a page's film that settles it, and answers decided by what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from demos._film import Film
from demos._lesson import Lesson
from kdalab.engine import events as ev
from kdalab.engine.strategy import held_slots, parse_strategy
from kdalab.units import format_bytes

Values = dict[str, Any]


@dataclass(frozen=True)
class Stop:
    """One question. Its words are ``tour.<name>-...``: doubt, ask, one for each option, told, why.

    Args:
        name: its name in the catalogue.
        page: slug of the page whose film answers it.
        options: names of the answers to choose from, in the order shown.
        read: the film's own numbers, for the texts.
        right: those numbers to the option that they make true.
        after: the film's step that answers it.
        before: the step that poses it.
        given: settings of that page.
        pose: film, step and language to the picture that poses it, where the page's own says more.
    """

    name: str
    page: str
    options: tuple[str, ...]
    read: Callable[[Any], Values]
    right: Callable[[Values], str]
    after: Callable[[Any], int]
    before: Callable[[Any], int]
    given: Mapping[str, Any] = field(default_factory=dict)
    pose: Callable[[Any, int, str], str] | None = None


@dataclass(frozen=True)
class Told:
    """A stop with its film: what the run found."""

    stop: Stop
    lesson: Lesson
    film: Film
    values: Values
    right: str
    before: int
    after: int

    def picture(self, answered: bool, lang: str) -> str:
        """What answers the question, or what poses it and does not give the answer away."""
        if not answered and self.stop.pose is not None:
            return self.stop.pose(self.film, self.before, lang)
        return self.film.picture(self.after if answered else self.before, lang)

    def link(self, step: int, lang: str) -> str:
        """Address of the page at this stop's settings and step."""
        settings = self.lesson.settings(dict(self.stop.given))
        return f"./{self.lesson.slug}?{self.lesson.query(settings, step, lang)}"


def tell(stop: Stop, lesson: Lesson) -> Told:
    """Run the stop's film and read it. Films are kept by their pages, so this costs once."""
    film = lesson.play(lesson.settings(dict(stop.given)))
    values = stop.read(film)
    right = stop.right(values)
    assert right in stop.options, (stop.name, right)
    return Told(stop, lesson, film, values, right, stop.before(film), stop.after(film))


@lru_cache(maxsize=64)
def told_at(number: int) -> Told:
    """Stop ``number`` with its run, made when somebody comes there."""
    from demos._pages import listed  # it imports the tour's page

    lessons = {p.slug: p.module.LESSON for p in listed() if hasattr(p.module, "LESSON")}
    return tell(STOPS[number], lessons[STOPS[number].page])


def told() -> tuple[Told, ...]:
    """Every stop, in order, with its run."""
    return tuple(map(told_at, range(len(STOPS))))


def _state(film: Any) -> Values:
    error = film.data()["error"]
    exact = sum(e < 1e-6 for e in error)
    return {
        "pairs": len(error), "exact": exact, "found": sum(film.data()["found"]),
        "mean": f"{100 * np.mean(error):.0f}",
    }  # fmt: skip


def _restore(film: Any) -> Values:
    match = next(e for e in film.data()["events"] if e["event"] == "FellBack")
    measured = film.data()["measured"][0]
    matched = [e for e in film.data()["events"] if e["event"] == "Matched"][-1]
    return {
        "match": matched["token_match"], "restore": measured["restore"],
        "replay": matched["replay"], "spacing": film.run.scenario.spacing,
        "new": film.run.measured[0].n_tokens - matched["token_match"], "who": match["request"],
    }  # fmt: skip


def _density(film: Any) -> Values:
    data = film.data()
    best = {k: max(data[k], key=lambda p: p["hit_share"]) for k in ("tight", "free")}
    dense = min(data["tight"], key=lambda p: p["interval"])
    return {
        "budget": format_bytes(data["budget_bytes"]), "tight": best["tight"]["interval"],
        "tight_share": _percent(best["tight"]["hit_share"]), "free": best["free"]["interval"],
        "free_share": _percent(best["free"]["hit_share"]), "dense": dense["interval"],
        "dense_share": _percent(dense["hit_share"]),
        "needed": format_bytes(best["free"]["state_bytes"]),
    }  # fmt: skip


def _cow(film: Any) -> Values:
    data = film.data()
    wrong = [m for m in data["measured"] if m["first_difference"] is not None]
    return {
        "wrong": len(wrong), "of": len(data["measured"]),
        "names": ", ".join(m["request"] for m in wrong) or "-",
        "restored": wrong[0]["restore"] if wrong else 0,
    }  # fmt: skip


def _given(film: Any) -> int:
    """The step in which a slot first changes hands."""
    ledgers = film.found.ledgers
    return next(i for i, ledger in enumerate(ledgers) if ledger.given)


def _donate(film: Any) -> Values:
    at = _given(film)
    ledgers = film.found.ledgers
    return {
        "copied": ledgers[at].bytes_copied - ledgers[at - 1].bytes_copied,
        "state": format_bytes(film.run.checkpoint_bytes),
        "slot": next(e.slot for e in film.run.events if isinstance(e, ev.Donated)),
        "own": film.found.held, "spares": film.found.held - 1,
        "copy": held_slots(parse_strategy("copy")),
    }  # fmt: skip


def _int8(film: Any) -> Values:
    run = film.run
    times = float(np.median(run.every) / np.median(run.once))
    return {
        "tokens": len(run.once), "once": f"{np.median(run.once):.2g}",
        "every": f"{np.median(run.every):.2g}", "ratio": times, "times": f"{times:.1f}",
    }  # fmt: skip


def _unified(film: Any) -> Values:
    data, found = film.data(), film.found
    at = found.refusals[0][0] if found.refusals else film.last
    now = found.tallies[film.opening][0]
    return {
        "total": format_bytes(data["total_bytes"]), "refused": data["split"]["refused"],
        "served": data["unified"]["refused"] == 0,
        "room": format_bytes(found.tallies[at][1].free_bytes),
        "evicted": now.evicted_states, "moved": format_bytes(now.moved_bytes),
        "page": format_bytes(film.found.page_bytes), "state": format_bytes(film.found.state_bytes),
    }  # fmt: skip


def _partial(film: Any) -> Values:
    data = film.data()
    return {
        "shared": data["shared"], "block": data["sizes"]["scheduler"], "restore": data["restore"],
        "replay": data["shared"] - data["restore"], "unit": film.fine.sizes.unit,
        "fine": film.fine.lookup.restore,
    }  # fmt: skip


def _retention(film: Any) -> Values:
    choice = film.data()["choices"][str(film.opening)][0]
    nodes = {c["node"]: c for c in choice["candidates"]}
    newest = min(nodes.values(), key=lambda c: c["age"])["node"]
    goes, oldest = choice["goes"], choice["oldest"]
    return {
        "goes": goes, "oldest": oldest, "newest": newest, "old_tokens": nodes[oldest]["end"],
        "goes_tokens": nodes[goes]["end"], "score": f"{nodes[goes]['total']:.2f}",
        "old_score": f"{nodes[oldest]['total']:.2f}", "restored": film.data()["restored"]["E"],
    }  # fmt: skip


def _transfer(film: Any) -> Values:
    data = film.data()
    pieces = data["pieces"]
    latent = sum(p["latent"] for p in pieces)
    state = sum(p["recurrent"] + p["conv"] for p in pieces)
    missing = data["tokens"] - data["held"]
    return {
        "context": data["tokens"], "held": data["held"], "missing": missing,
        "rest": format_bytes(latent), "state": format_bytes(state), "bytes": state,
        "all": format_bytes(latent // missing * data["tokens"]), "latent": latent,
    }  # fmt: skip


def _rejected(film: Any) -> int:
    """The step in which drafts are rejected after some were right."""
    found = film.found.verifies
    return next(i for i, v in found.items() if 0 < v.accepted < len(v.drafted) - 1)


def _verify(film: Any) -> Values:
    """Tokens and forwards up to the step that answers."""
    answering = _rejected(film)
    at = film.found.verifies[answering]
    past = [v for i, v in film.found.verifies.items() if i <= answering]
    return {
        "drafts": len(at.drafted), "accepted": at.accepted, "off": at.committed_off,
        "difference": f"{at.committed_off:g}",
        "seen": next(k.seen for k in at.kept if k.fate == "committed"),
        "worst": f"{max(k.off for k in at.kept if k.fate == 'rejected'):.3g}",
        # A forward also gives the model's own next token.
        "forwards": len(past), "made": sum(v.accepted + 1 for v in past),
    }  # fmt: skip


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _posed(film: Any, step: int, lang: str) -> str:
    """The picture as far as the step: its history may not give the answer away."""
    shown: str = film.posed(step, lang)
    return shown


STOPS: tuple[Stop, ...] = (
    Stop("state", "state", ("all", "none", "last"), _state,
         lambda v: {v["pairs"]: "all", 1: "last"}.get(v["exact"], "none"),
         after=lambda f: f.last, before=lambda f: 1),
    Stop("match", "restore", ("match", "restore", "zero"), _restore,
         lambda v: "match" if v["restore"] == v["match"] else "restore" if v["restore"] else "zero",
         after=lambda f: f.opening, before=lambda f: f.first_of("Submitted", request="B")),
    Stop("density", "density", ("denser", "same", "sparser"), _density,
         lambda v: "same" if v["free"] == v["tight"] else
         "denser" if v["free"] < v["tight"] else "sparser",
         after=lambda f: f.last, before=lambda f: 0,
         given={"memory": "unlimited", "interval": 512}),
    Stop("cow", "sharing", ("fine", "refuse", "poison"), _cow,
         lambda v: "poison" if v["wrong"] else "fine",
         after=lambda f: f.opening, before=lambda f: f.first_of("Admitted", request="B"),
         given={"breaks": ("cow",)}, pose=_posed),
    Stop("donate", "sharing", ("nothing", "whole", "rows"), _donate,
         lambda v: "whole" if v["copied"] else "nothing",
         after=_given, before=lambda f: _given(f) - 1, pose=_posed),
    Stop("int8", "int8", ("less", "double", "more"), _int8,
         lambda v: "less" if v["ratio"] < 1.2 else "double" if v["ratio"] < 4 else "more",
         after=lambda f: f.kinds.index("decode"), before=lambda f: 0),
    Stop("unified", "unified", ("served", "kind", "slower"), _unified,
         lambda v: "served" if v["served"] and v["refused"] else "slower",
         after=lambda f: f.opening, before=lambda f: f.first_of("Submitted", request="D"),
         pose=_posed),
    Stop("partial", "partial", ("none", "block", "all"), _partial,
         lambda v: "none" if not v["replay"] else "all" if not v["restore"] else "block",
         after=lambda f: f.opening, before=lambda f: 1,
         given={"shared": 15_000, "block": 8192, "unit": 128, "breaks": ("coarse",)}),
    Stop("retention", "retention", ("oldest", "least", "newest"), _retention,
         lambda v: "oldest" if v["goes"] == v["oldest"] else
         "newest" if v["goes"] == v["newest"] else "least",
         after=lambda f: f.opening, before=lambda f: f.opening - 1,
         pose=lambda f, step, lang: f.tree(step, lang)),
    Stop("transfer", "transfer", ("kv", "both", "all"), _transfer,
         lambda v: "both" if v["bytes"] and v["rest"] != v["all"] else
         "all" if v["bytes"] else "kv",
         after=lambda f: f.last - 1, before=lambda f: 0, given={"have": 192}),
    Stop("verify", "verify", ("subtract", "again", "kept"), _verify,
         lambda v: "kept" if v["off"] == 0 else "again",
         after=_rejected, before=lambda f: 1),
)  # fmt: skip
"""In the order of the articles' common doubts."""
