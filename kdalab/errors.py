"""The one family of errors that KDALab raises on purpose."""


class KdalabError(ValueError):
    """Bad input or an impossible request.

    The message says what is wrong, what is allowed, and what to do.
    """


class NotFiniteError(KdalabError):
    """A state that should be kept holds NaN or infinity: its request is of no more use."""


class InvariantError(AssertionError):
    """A rule of the design does not hold; ``check()`` raises it with the broken rule named."""


class OutOfSlotsError(KdalabError):
    """A pool has too few free slots; nothing was taken."""
