def grow(
    pages: list[bool],
    states: list[bool],
    page_bytes: int,
    state_bytes: int,
    room: int,
    kind: str,
    n: int,
) -> tuple[bool, int, int, list[tuple[int, int]]]:
    """Own holes first, then the gap, then the other side draws back."""
    own, other = (pages, states) if kind == "page" else (states, pages)
    size, other_size = (page_bytes, state_bytes) if kind == "page" else (state_bytes, page_bytes)
    fresh = max(0, n - own.count(False))
    gap = room - len(own) * size - len(other) * other_size
    other = list(other)
    moves = []
    while fresh * size > gap:
        if False not in other:
            return False, len(pages), len(states), []
        hole, last = other.index(False), len(other) - 1
        other[hole] = True
        moves.append((last, hole))
        other.pop()
        while other and not other[-1]:
            other.pop()
        gap = room - len(own) * size - len(other) * other_size
    rows = (len(own) + fresh, len(other))
    return (True, *(rows if kind == "page" else rows[::-1]), moves)
