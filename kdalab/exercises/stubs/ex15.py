def grow(
    pages: list[bool],
    states: list[bool],
    page_bytes: int,
    state_bytes: int,
    room: int,
    kind: str,
    n: int,
) -> tuple[bool, int, int, list[tuple[int, int]]]:
    """Take ``n`` more entries of one kind in a buffer that two kinds share from both ends.

    Args:
        pages: the low end's rows from the buffer's start to the frontier: used, or a hole (False).
        states: the high end's rows, counted from the buffer's end to the frontier, likewise. The
            row at a frontier is always used.
        page_bytes, state_bytes: bytes of one row of either kind.
        room: bytes of the whole buffer.
        kind: "page" or "state": of what more is wanted.
        n: how many.

    Returns:
        ``(fits, page_rows, state_rows, moves)``: do they fit; the rows up to each frontier
        afterwards; and the moves ``(from_row, to_row)`` of the other kind that make room, in order.
        If they do not fit, nothing changes and nothing moves.
    """
    raise NotImplementedError
