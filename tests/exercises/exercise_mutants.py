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
        "four rows only": ("range(1, N)", "range(1, 4)"),
        "a loop that ends before the last row": ("range(1, N)", "range(1, N if N < 16 else 15)"),
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
    "ex10": {
        "the total, not the mean": (" / len(match_lengths)", " / 1"),
        "what is restored": ("m % interval", "m - m % interval"),
        "a checkpoint at the match is not used": ("m % interval", "(m - 1) % interval + 1"),
    },
    "ex11": {
        "the deepest matches": (
            "sorted(set(best(0, budget, 0)[1]))",
            "sorted(set(ends[-budget:] if budget else []))",
        ),
        "one too few": ("best(0, budget, 0)", "best(0, max(0, budget - 1), 0)"),
        "one too many": ("best(0, budget, 0)", "best(0, budget + 1, 0)"),
    },
    "ex12": {
        "checkpoints are overwritten": ("slot in cached or ", ""),
        "the last one copies too": ("readers[slot] -= 1", "pass"),
        "everybody copies": ("if slot in cached or readers[slot] > 1:", "if True:"),
    },
    "ex13": {
        "a duplicate is donated": ("known is not None or ", ""),
        "goes on in the donated slot": ("return owners, spare", "return owners, slot"),
        "works in place": ("owners = list(owners)", "pass"),
    },
    "ex14": {
        "a scale for each row of V": ("dim=-2", "dim=-1"),
        "cut off, not rounded": ("torch.round(state / scale)", "torch.trunc(state / scale)"),
        "128 steps": ("largest / 127", "largest / 128"),
        "a bound of one step": ("scale / 2", "scale"),
    },
    "ex15": {
        "own holes are not used": ("n - own.count(False)", "n"),
        "nobody draws back": ("if False not in other:", "if True:"),
        "trailing holes stay": ("while other and not other[-1]:", "while False:"),
        "moves although it does not fit": ("len(states), []", "len(states), moves"),
    },
    "ex16": {
        "the quarter is forgotten": ("most if most < 1.25 * least else least", "least"),
        "runs in place of turns": ("layers[i::count]", "layers[i * places : (i + 1) * places]"),
        "states first": ("key=lambda spec: spec[0])", "key=lambda spec: spec[0], reverse=True)"),
        "by kind only": ("by_spec.setdefault(spec, [])", "by_spec.setdefault((spec[0], 0), [])"),
    },
    "ex17": {
        "rounded down": ("-(-state_bytes // step)", "max(1, state_bytes // step)"),
        "not a multiple": (
            "steps * multiple, steps",
            "-(-state_bytes // attention_bytes_per_token), steps",
        ),
        "the waste in tokens": (
            "steps * step - state_bytes",
            "steps * multiple - state_bytes // attention_bytes_per_token",
        ),
    },
    "ex18": {
        "whole blocks only": (
            "range(min(first + per, len(hashes)) - 1, first - 1, -1)",
            "range(0)",
        ),
        "from low to high": (
            "range(min(first + per, len(hashes)) - 1, first - 1, -1)",
            "range(first, min(first + per, len(hashes)))",
        ),
        "beyond the missing block": ("min(first + per, len(hashes))", "len(hashes)"),
        "a block by its first unit": ("hashes[(whole + 1) * per - 1]", "hashes[whole * per]"),
    },
    "ex19": {
        "not floored": ("end < n_prompt and floored > start", "False"),
        "the tail is passed": ("[tail]", "[]"),
        "stays off the grid": ("if start % block:", "if False:"),
    },
    "ex20": {
        "nothing left to compute": ("(n_prompt - 1) // block", "n_prompt // block"),
        "the junction goes": ("{tail, junction}", "{tail}"),
        "0 keeps nothing": ("b in reachable or ", "retention and b in reachable or "),
        "the interval is forgotten": (" or (retention and b % retention == 0)", ""),
    },
    "ex21": {
        "not normalised": ("return [r + alpha * s", "return [r * 1.5 + alpha * s"),
        "the older the better": ("1 / (now - used)", "now - used"),
        "FLOPs, not per byte": ("flops / nbytes", "float(flops)"),
        "divides by nothing": ("if high == low:", "if False:"),
    },
    "ex22": {
        "cuts the whole row": (
            "torch.cat([part.chunk(size, dim=-1)[rank] for part in parts], dim=-1)",
            "conv.chunk(size, dim=-1)[rank].contiguous()",
        ),
        "always the first rank": ("[rank]", "[0]"),
        "deals channels out in turn": ("part.chunk(size, dim=-1)[rank]", "part[:, rank::size]"),
    },
    "ex23": {
        "one token late": ("// gain + 1", "// gain + 2"),
        "no latent KV": ("bandwidth - prefill_rate * latent_bytes_per_token", "bandwidth"),
        "ships when both are equal": ("// gain + 1", "// gain"),
        "ships at any price": ("if gain <= 0:", "if gain == 0:"),
    },
    "ex24": {
        "nothing left to compute": ("deepest(tokens, tree, n - 1)", "deepest(tokens, tree, n)"),
        "no branching state": ("if match > deepest(tokens, states, n) else", "if False else"),
        "the tail is the leaf": ("(n - 1) // block * block)", "n // block * block)"),
        "only the deepest prefix is known": (
            "range(block, n + 1, block))",
            "(n // block * block,))",
        ),
    },
}
