"""Where to read the same mechanisms in SGLang, vLLM and FLA, and whether they are still there."""

from kdalab.sources.checkout import Found, check_checkout
from kdalab.sources.reading import Symbol, System, load_sources

__all__ = ["Found", "Symbol", "System", "check_checkout", "load_sources"]
