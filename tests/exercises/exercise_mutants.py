"""Answers that are nearly right: a text of the solution, and what stands there instead."""

MUTANTS: dict[str, dict[str, tuple[str, str]]] = {
    "ex01": {
        "rounded down": ("-(-checkpoint_bytes // latent", "(checkpoint_bytes // latent"),
        "one too many when nothing is left over": (
            "-(-checkpoint_bytes // latent_bytes_per_token)",
            "checkpoint_bytes // latent_bytes_per_token + 1",
        ),
    },
    "ex06": {
        "nothing left to compute": ("n_tokens - 1", "n_tokens"),
        "a state beyond the latent KV": ("set(kv_boundaries) & ", ""),
        "inside a page": (" and b % page == 0", ""),
        "beyond the match": ("min(token_match, n_tokens - 1)", "n_tokens - 1"),
    },
    "ex07": {
        "the lock stays below": ("kv_lock=node.kv_lock", "kv_lock=0"),
        "the children move up": ("children=(lower.tokens[0],)", "children=node.children"),
        "the upper half has the state too": (
            "kv_lock=node.kv_lock,",
            "kv_lock=node.kv_lock, state=node.state,",
        ),
        "the start is forgotten": ("start=node.start + n, ", ""),
    },
    "ex02": {
        "one checkpoint too many": ("n_tokens // interval", "n_tokens // interval + 1"),
        "none at the prompt's end": ("n_tokens // interval", "max(0, n_tokens - 1) // interval"),
        "no latent KV": ("n_tokens * latent_bytes_per_token + ", ""),
    },
    "ex03": {
        "decay along the values": ("decay[:, None] * S", "S * decay.mean()"),
        "reads before it writes": ("return q @ S, S", "return q @ (S - torch.outer(k, delta)), S"),
        "adds without a difference": ("beta * (v - k @ S)", "beta * v"),
        "works in place": ("S = decay[:, None] * S", "S *= decay[:, None]"),
    },
    "ex04": {
        "the other way round": ("M2 @ M1", "M1 @ M2"),
        "b not carried on": ("M2 @ b1 + b2", "b1 + b2"),
    },
    "ex05": {
        "the diagonal counts": ("mask=o_n < i", "mask=o_n <= i"),
        "one step only": ("range(1, N)", "range(1, 2)"),
        "the wrong system": ("A + g * N * N", "A"),
    },
    "ex08": {
        "stops at a tombstone": (
            "        start = node.end\n",
            "        start = node.end\n        if not node.has_state:\n            break\n",
        ),
        "in the middle of an edge": ("complete and ", ""),
        "nothing left to compute": ("node.end < n_tokens", "node.end <= n_tokens"),
    },
    "ex09": {
        "no cascade": ("            remove(above)", "            pass"),
        "locks forgotten": ("if not n.kv_lock and not has_children(n)", "if not has_children(n)"),
        "states by the age of KV": ("n.state_used", "n.kv_used"),
        "states of step 1 do not count": ('freed["states"] += node.has_state', "pass"),
    },
}
