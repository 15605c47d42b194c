"""Tickets for files, runs that are stopped, and films that are kept: without a browser."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from demos import _work, density, lab
from demos._kept import Kept
from demos._layout import presets_at
from demos._lesson import read_link
from demos._trace_note import trace_note
from demos._uploads import UPLOADS, Ticket, Uploads
from kdalab.errors import KdalabError
from kdalab.lab.generate import CHAT, generate, write_jsonl
from kdalab.lessons.uploads import read_upload
from kdalab.words import LANGUAGES

LESSON = lab.LESSON


@pytest.fixture
def ticket(tmp_path):
    file = tmp_path / "x.jsonl"
    write_jsonl(file, generate(120, CHAT), 512)
    kept = UPLOADS.keep("someone", read_upload(file, "<i>mine</i>.jsonl"))
    yield kept
    UPLOADS.drop(kept)
    LESSON.forget([kept])


def given(ticket, **more):
    return LESSON.settings(
        {"trace": "file", "file": ticket, "requests": 100, "model": "kimi-linear-48b"} | more
    )


def test_a_file_is_one_visitor_s_and_goes_when_the_visitor_leaves():
    files = Uploads(most=2)
    mine, yours = files.keep("me", 1), files.keep("you", 2)
    assert (files.get(mine), files.get(yours)) == (1, 2)
    assert mine != yours
    assert files.leave("me") == [mine]
    assert not files.has(mine)
    with pytest.raises(KdalabError, match="upload it again"):
        files.get(mine)
    files.keep("a", 3)
    files.get(yours)
    files.keep("b", 4)  # the one used longest ago went
    assert files.get(yours) == 2
    files.drop(yours)
    files.drop(yours)
    assert not files.has(yours)


def test_no_visitor_pushes_out_the_others_files():
    files = Uploads(most=3, most_bytes=100)
    mine = files.keep("me", 1, 40)
    for n in range(20):
        last = files.keep("you", n, 50)
    assert (files.get(mine), files.get(last)) == (1, 19)
    assert len(files._kept) == 2
    third = files.keep("third", 3, 20)  # over the bytes, and mine was used longest ago
    assert [files.has(one) for one in (mine, last, third)] == [False, True, True]
    large = files.keep("third", 4, 1000)  # the newest stays
    assert [files.has(one) for one in (last, third, large)] == [False, False, True]
    files.drop(large)
    assert not files._bytes


def test_the_bytes_of_a_file_in_memory_are_close_to_what_is_counted(tmp_path):
    file = tmp_path / "x.jsonl"
    write_jsonl(file, generate(2000, CHAT), 512)
    # In a process of its own: here a hub may be drawing its pages meanwhile.
    code = """
import sys, tracemalloc
from pathlib import Path
from kdalab.lessons.uploads import read_upload
read_upload(Path(sys.argv[1]), "warm")
tracemalloc.start()
read = read_upload(Path(sys.argv[1]), "x")
print(tracemalloc.get_traced_memory()[0], read.kept_bytes)
"""
    command = [sys.executable, "-c", code, str(file)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    held, counted = map(int, said.split())
    assert held / 2 < counted < held * 2


def test_a_text_is_no_ticket_even_with_the_same_letters(ticket):
    for text in (str(ticket), str(ticket) + "x", "file"):
        with pytest.raises(KdalabError, match="no link and no setting"):
            LESSON.settings({"file": text})
    with pytest.raises(KdalabError, match="no file of yours"):
        LESSON.play(LESSON.settings({"trace": "file"}))
    with pytest.raises(KdalabError, match="no link and no setting"):
        read_link(LESSON, {"file": str(ticket)})


def test_the_address_the_download_and_the_numbers_leave_the_file_out(ticket):
    settings = given(ticket, memory=8)
    query = LESSON.query(settings, 2, "ko")
    assert query == "requests=100&model=kimi-linear-48b&memory=8&step=2&lang=ko"
    assert settings.as_dict()["file"] == ""
    assert str(ticket) not in str(settings.as_dict())


def test_the_page_says_which_part_it_took_and_gives_the_whole_command(ticket):
    film = LESSON.play(given(ticket, memory=8, system="SGLang"))
    assert film.data()["total_requests"] == 120
    for lang in LANGUAGES:
        shown = film.picture(film.opening, lang) + film.why(film.opening, lang)
        assert "120" in shown
        assert "--limit 100" in shown
        assert "<i>" not in shown
    command = film.data()["command"]
    assert command.startswith("kdalab lab advise 'i>.jsonl' --model kimi-linear-48b --memory 8GiB")
    assert "--limit" not in command


def test_a_file_that_was_sorted_says_so_and_its_command_sorts(tmp_path):
    file = tmp_path / "x.jsonl"
    write_jsonl(file, generate(40, CHAT), 512)
    file.write_text("\n".join(reversed(file.read_text().splitlines())))
    read = read_upload(file, "mine.jsonl")
    assert f"{read.back} of its lines go back in time" in trace_note(read, "en")
    kept = UPLOADS.keep("someone", read)
    film = LESSON.play(given(kept, memory=8, system="SGLang"))
    assert film.data()["command"].endswith(" --sort")
    assert "--sort" in film.picture(film.opening, "en")
    UPLOADS.drop(kept)
    LESSON.forget([kept])


def test_an_example_does_not_keep_its_name_for_another_s_file(ticket):
    own = density.LESSON.settings({"trace": "file", "file": ticket})
    (box,) = presets_at(density.LESSON, own, "en")
    assert box.choices[0] == ("agents, tight memory (changed)", "agents")


def test_films_of_a_file_go_with_it(ticket):
    settings = given(ticket, memory=8, system="SGLang")
    LESSON.play(settings)
    UPLOADS.drop(ticket)
    LESSON.play(settings)  # kept
    LESSON.forget([ticket])
    with pytest.raises(KdalabError, match="upload it again"):
        LESSON.play(settings)


def test_a_run_says_where_it_is_and_ends_when_it_is_stopped(ticket):
    said = []

    def tell(share, words):
        said.append((share, words))
        _work.stop("someone")

    with (
        pytest.raises(_work.StoppedError),
        _work.working("someone", _work.Work("ko", tell)),
    ):
        LESSON.play(given(ticket, memory=9, system="vLLM"))
    assert len(said) == 1
    assert "재생" in said[0][1]
    film = LESSON.play(given(ticket, memory=9, system="vLLM"))  # nothing was left half done
    assert film.run.requests == 100
    _work.stop("someone")
    _work.at("lab.at-sweep", 1)


def test_a_newer_run_of_a_visitor_stops_the_older_one():
    older, newer = _work.Work("en"), _work.Work("en")
    with _work.working("v", older), _work.working("v", newer):
        assert (older.stopped, newer.stopped) == (True, False)
    with _work.working("w", _work.Work("en")):
        _work.stop("v")
        _work.at("lab.at-sweep", 1)


def test_who_waits_for_a_run_that_its_visitor_stopped_makes_it_anew():
    begun, go, made = threading.Event(), threading.Event(), []

    def make(key):
        made.append(key)
        if len(made) == 1:
            begun.set()
            go.wait(10)
            raise _work.StoppedError
        return key * 2

    kept = Kept(make)
    caught = []

    def first():
        try:
            kept(3)
        except _work.StoppedError as error:
            caught.append(error)

    one = threading.Thread(target=first)
    one.start()
    begun.wait(10)
    answer = []
    two = threading.Thread(target=lambda: answer.append(kept(3)))
    two.start()
    go.set()
    one.join(10)
    two.join(10)
    assert (answer, len(made), len(caught)) == ([6], 2, 1)
    kept.forget(lambda key: key == 3)
    assert not kept.has(3)


def test_a_ticket_cannot_be_guessed():
    files = Uploads()
    tickets = {files.keep(f"v{n}", n) for n in range(8)}
    assert len(tickets) == 8
    assert all(isinstance(x, Ticket) and len(x) >= 20 for x in tickets)
