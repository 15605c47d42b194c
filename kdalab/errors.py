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


def shown(value: object, most: int = 60) -> str:
    """A wrong value, short enough for a message: long texts are cut to ``most`` characters, and of
    a huge number only its size is told (Python refuses to print more than 4,300 digits)."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"a number of {value.bit_length():,} bits"
    try:
        text = repr(value)
    except Exception:  # a huge number inside a list, or whoever wrote the value's __repr__
        return f"a {type(value).__name__} that cannot be printed"
    text = text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate has no bytes
    return text if len(text) <= most else text[: most - 3] + "..."
