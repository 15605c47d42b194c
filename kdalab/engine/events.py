"""What happened, one frozen record an act. The log is the single source of every picture.

All values are plain (numbers, strings, tuples), so that a log can be kept, sent, filtered and
folded without the engine. Lengths and positions are in tokens, sizes in bytes.

Requests' events are in ``request_events``, those of states and pages in ``state_events``, copies
to and from the host in ``transfer_events``.
"""

from kdalab.engine.event import Event
from kdalab.engine.request_events import (
    Admitted,
    Cancelled,
    Computed,
    Decoded,
    Dispatched,
    DraftsDropped,
    FaultInjected,
    FellBack,
    Finished,
    Matched,
    PagesTaken,
    Replayed,
    Retracted,
    Submitted,
    Verified,
)
from kdalab.engine.state_events import (
    Cleared,
    CopiedOnWrite,
    Donated,
    Evicted,
    Inserted,
    Moved,
    SnapshotSkipped,
    Snapshotted,
    SpareTaken,
    Tracked,
)

__all__ = [
    "Admitted",
    "Cancelled",
    "Cleared",
    "Computed",
    "CopiedOnWrite",
    "Decoded",
    "Dispatched",
    "Donated",
    "DraftsDropped",
    "Event",
    "Evicted",
    "FaultInjected",
    "FellBack",
    "Finished",
    "Inserted",
    "Matched",
    "Moved",
    "PagesTaken",
    "Replayed",
    "Retracted",
    "SnapshotSkipped",
    "Snapshotted",
    "SpareTaken",
    "Submitted",
    "Tracked",
    "Verified",
]
