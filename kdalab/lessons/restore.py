"""The examples of the restore lesson: how far a prompt is known, and where it can restart."""

from __future__ import annotations

from dataclasses import replace

from kdalab.cache.placement import Every
from kdalab.errors import KdalabError
from kdalab.lessons.scenario import LESSON_CONFIG, Prompt, Scenario

_SYSTEM = (
    "You are the support agent of a train company. Answer in two sentences. "
    "Name the train, the platform and the time. If a connection is missed, offer the next one "
    "and say how long the wait is. Never invent a platform. Tickets are valid on the next train "
    "when the delay is our own. Speak the language of the traveller.\n"
)

_HISTORY = (
    "Task: find out why the nightly build fails.\n"
    "Step 1. Read the log. The linker stops at 02:14 with an undefined symbol.\n"
    "Step 2. List what changed since the last good build: 14 commits, 3 of them in the kernel.\n"
    "Step 3. Bisect. The commit that renames a header is the first bad one.\n"
    "Step 4. The header is included under its old name in two files that are built at night "
    "only, so no check of the day has seen it.\n"
)

_LETTER = (
    "Dear tenant, please fill a bucket in the morning, close every tap, and leave the washing "
    "machine off. The plumber needs to enter the cellar; the key is with the neighbour on the "
    "ground floor. The water in your house will be switched off on {day} from nine to noon. "
    "After noon let it run for a minute until it is clear. "
    "We are sorry for the trouble and thank you for your patience.\n"
    "{order}"
)
_FOR_A_CHILD = "Rewrite this letter for a child of eight years."
_IN_FRENCH = "Rewrite this letter in French and keep it short."

FAN_OUT = Scenario(
    name="fan-out",
    title="System prompt fan-out",
    question="The text is known. Why can it not be restored there?",
    lead=(
        "Two travellers write under one system prompt. The second prompt is known far beyond the "
        "last point at which a recurrent state was kept."
    ),
    prompts=(
        Prompt(
            "A",
            _SYSTEM
            + "Traveller: my train from Basel was late and I missed the one to Milan at 14:33. "
            "What now, and do I need to buy another ticket?",
        ),
        Prompt(
            "B",
            _SYSTEM
            + "Traveller: which platform does the train to Lyon leave from, and can I bring a "
            "bicycle on it?",
        ),
    ),
)

EDIT = Scenario(
    name="edit",
    title="Edit in the middle",
    question="One word changes. How much has to be computed again?",
    lead=(
        "The second prompt is the first with another weekday in its middle. What follows the "
        "word is the same text, but every state after it has seen another word."
    ),
    prompts=(
        Prompt("A", _LETTER.format(day="Tuesday", order=_FOR_A_CHILD)),
        Prompt("B", _LETTER.format(day="Thursday", order=_FOR_A_CHILD)),
    ),
    config=replace(LESSON_CONFIG, placement=Every(128)),
)

EDIT_LATE = Scenario(
    name="edit-late",
    title="Edit near the end",
    question="The edit is late. Does the whole prefix come back?",
    lead=(
        "Only the last line differs, beyond the last checkpoint. Latent KV enters the tree only "
        "together with a state, so here the token match ends where the state is."
    ),
    prompts=(
        Prompt("A", _LETTER.format(day="Tuesday", order=_FOR_A_CHILD)),
        Prompt("B", _LETTER.format(day="Tuesday", order=_IN_FRENCH)),
    ),
    config=replace(LESSON_CONFIG, placement=Every(192)),
)

FORK = Scenario(
    name="fork",
    title="Two agents fork",
    question="Two agents continue from one history. Who owns the state?",
    lead=(
        "B and C arrive together and restart from the same checkpoint. Each copies it into a "
        "private slot, because a recurrent state is overwritten by the next token."
    ),
    prompts=(
        Prompt("A", _HISTORY + "Step 5. Plan the fix."),
        Prompt("B", _HISTORY + "Agent one: write the patch for the two files."),
        Prompt(
            "C",
            _HISTORY + "Agent two: write a check that would have found it by day.",
            together=True,
        ),
    ),
    config=replace(LESSON_CONFIG, placement=Every(128)),
)

AGAIN = Scenario(
    name="again",
    title="The same prompt again",
    question="Everything is known. Why compute anything?",
    lead=(
        "The prompt ends exactly on a checkpoint. Its last token must still be computed, because "
        "a state gives no logits; so the restart is one checkpoint earlier."
    ),
    prompts=(
        Prompt("A", (_SYSTEM + _HISTORY)[:384]),
        Prompt("B", (_SYSTEM + _HISTORY)[:384]),
    ),
    config=replace(LESSON_CONFIG, placement=Every(128)),
)

PRESSURE = Scenario(
    name="pressure",
    title="Checkpoints run out",
    question="The checkpoint was evicted. What is the text worth now?",
    lead=(
        "Only three checkpoints fit. B takes the older one away from A; its node stays in the "
        "tree as a tombstone: known text without a state. Then C asks for A's prefix."
    ),
    prompts=(
        Prompt(
            "A",
            _SYSTEM
            + "Traveller: is there a dining car on the night train to Vienna, and until when is "
            "it open?",
        ),
        Prompt("B", _HISTORY),
        Prompt(
            "C", _SYSTEM + "Traveller: has the night train to Vienna left on time this evening?"
        ),
    ),
    config=replace(LESSON_CONFIG, placement=Every(192), n_checkpoints=3),
)

UNRELATED = Scenario(
    name="unrelated",
    title="One word at the front",
    question="Only the first word differs. What can be reused?",
    lead="A prefix cache knows prefixes. A difference at the very front leaves nothing to share.",
    prompts=(
        Prompt("A", "Monday. " + _SYSTEM),
        Prompt("B", "Friday. " + _SYSTEM),
    ),
)

RESTORE: dict[str, Scenario] = {
    s.name: s for s in (FAN_OUT, EDIT, EDIT_LATE, FORK, AGAIN, PRESSURE, UNRELATED)
}
"""Scenarios of the restore lesson by name; the first is the one that opens."""


def scenario(name: str) -> Scenario:
    """The scenario of that name.

    Raises:
        KdalabError: no such scenario; the message lists the known ones.
    """
    if name not in RESTORE:
        raise KdalabError(f"unknown scenario {name!r}; known: {', '.join(RESTORE)}")
    return RESTORE[name]
