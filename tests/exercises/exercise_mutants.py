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
}
