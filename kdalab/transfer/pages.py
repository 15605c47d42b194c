"""The same latent KV in pages of another size."""

from __future__ import annotations

from kdalab.errors import KdalabError
from kdalab.transfer.bundle import Bundle
from kdalab.transfer.metadata import MAX_PAGE_TOKENS


def repage(bundle: Bundle, page_tokens: int) -> Bundle:
    """A bundle with pages of ``page_tokens`` tokens; itself where they are so already.

    Latent KV is known token by token, so its bits do not depend on the page: only where a page
    ends, and how much of the last one is zero.

    Raises:
        KdalabError: no page size.
    """
    if type(page_tokens) is not int or not 1 <= page_tokens <= MAX_PAGE_TOKENS:
        raise KdalabError(f"page_tokens = {page_tokens!r}; use 1 to {MAX_PAGE_TOKENS:,}")
    if page_tokens == bundle.page_tokens:
        return bundle
    latent = bundle.latent_tokens()
    layers, n, dim = latent.shape
    pages = latent.new_zeros(-(-n // page_tokens), layers, page_tokens, dim)
    for i, page in enumerate(latent.split(page_tokens, dim=1)):
        pages[i, :, : page.shape[1]] = page
    return bundle.changed(latent=pages)
