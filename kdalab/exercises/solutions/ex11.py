from functools import cache


def place(matches: list[int], budget: int) -> list[int]:
    """A best checkpoint stands at a match; choose the first, and solve what lies above it."""
    ends = sorted(m for m in matches if m > 0)

    @cache
    def best(first: int, left: int, below: int) -> tuple[int, tuple[int, ...]]:
        """Least replay of ``ends[first:]`` when the last checkpoint is at ``below``."""
        if first == len(ends):
            return 0, ()
        replayed = 0
        found: tuple[int, tuple[int, ...]] = (sum(m - below for m in ends[first:]), ())
        for i in range(first, len(ends)):
            if left:
                rest, chosen = best(i + 1, left - 1, ends[i])
                found = min(found, (replayed + rest, (ends[i], *chosen)))
            replayed += ends[i] - below
        return found

    return sorted(set(best(0, budget, 0)[1]))
