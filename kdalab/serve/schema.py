"""What a client may say, field by field. Unknown fields and wrong types are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kdalab.serve.allowed import sentence
from kdalab.serve.errors import ServeError
from kdalab.serve.limits import Limits
from kdalab.transfer.metadata import Hex32, Hex64

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)

TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Tokens = Annotated[list[TokenId], Field(min_length=1, max_length=1 << 20)]
M = TypeVar("M", bound=BaseModel)
NewTokens = Annotated[int, Field(ge=1, le=1 << 20)]
Stops = Annotated[list[TokenId], Field(max_length=64)]
StopText = Annotated[str, Field(min_length=1, max_length=256)]
StopTexts = Annotated[list[StopText], Field(max_length=4)]
Zero = Annotated[float, Field(ge=0, le=0)]


Side = Annotated[int, Field(ge=1, le=1 << 14)]
Base64 = Annotated[str, Field(max_length=1 << 26)]
Level = Annotated[int, Field(ge=0, le=255)]
Pixel = Annotated[list[Level], Field(min_length=3, max_length=3)]
Rows = Annotated[list[Annotated[list[Pixel], Field(max_length=1 << 14)]], Field(max_length=1 << 14)]
Salt = Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")]


class ImageIn(BaseModel):
    """An image of a client: RGB, as base64 of its bytes row by row, or as nested lists.

    In a prompt of ids it stands before the id with index ``at``. A ``private`` one is neither kept
    nor ever matched with another request's.
    """

    model_config = _STRICT

    height: Side
    width: Side
    data: Base64 | None = None
    pixels: Rows | None = None
    at: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    private: bool = False


class PlacedImage(BaseModel):
    """An image on its way from decode to prefill; its positions begin at ``start``."""

    model_config = _STRICT

    start: Annotated[int, Field(ge=0, le=1 << 20)]
    height: Side
    width: Side
    data: Base64
    salt: Salt = ""


class Encode(BaseModel):
    """POST /v1/encode: what prefill asks of an encode process."""

    model_config = _STRICT

    height: Side
    width: Side
    data: Base64
    salt: Salt = ""
    encoder: Hex64


ImageList = Annotated[list[ImageIn], Field(max_length=64)]


class Completion(BaseModel):
    """POST /v1/completions, as far as it means something here. Decoding is greedy.

    A field that is null is one that was left out, as OpenAI's clients write it. What would change
    an answer and is not done here is refused; its default is taken.
    """

    model_config = _STRICT

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {k: v for k, v in given.items() if v is not None or k not in cls.model_fields}

    model: Annotated[str, Field(max_length=200)] | None = None
    prompt: Annotated[str, Field(min_length=1, max_length=1 << 22)] | Tokens
    max_tokens: NewTokens = 16
    images: ImageList = Field(default_factory=list)
    stream: bool = False
    stream_options: dict[str, bool] | None = None
    stop: StopText | StopTexts = Field(default_factory=list)
    stop_token_ids: Stops = Field(default_factory=list)
    temperature: Zero | None = None
    frequency_penalty: Zero = 0.0
    presence_penalty: Zero = 0.0
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] = Field(default_factory=dict)
    logprobs: None = None
    suffix: None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Literal[1] = 1
    best_of: Literal[1] = 1
    echo: Literal[False] = False
    seed: int | None = None
    user: Annotated[str, Field(max_length=200)] | None = None

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop


class Generate(BaseModel):
    """POST /v1/generate: what the router asks of a decode process."""

    model_config = _STRICT

    model: Annotated[str, Field(max_length=200)] | None = None
    prompt: Annotated[str, Field(min_length=1, max_length=1 << 22)] | Tokens
    max_tokens: NewTokens
    images: ImageList = Field(default_factory=list)
    stop: StopTexts = Field(default_factory=list)
    stop_token_ids: Stops = Field(default_factory=list)


class Prefill(BaseModel):
    """POST /v1/prefill: what a decode process asks of a prefill process.

    ``have`` tokens of latent KV need not be sent. ``identity`` is what the states must be of.
    While the prompt waits and the engine works, the asker wants a sign of life every ``beat_s``
    seconds.
    """

    model_config = _STRICT

    transfer: Hex32
    identity: dict[str, Any]
    tokens: Tokens
    have: Annotated[int, Field(ge=0, le=1 << 20)]
    images: Annotated[list[PlacedImage], Field(max_length=64)] = Field(default_factory=list)
    beat_s: Annotated[float, Field(ge=0.01, le=3600)] = 5.0


def parsed(kind: type[M], body: bytes) -> M:
    """A body as ``kind``.

    Raises:
        ServeError: it is no JSON, or a field is missing, unknown or out of range; the first such
            field is named.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        text, field = sentence(error.errors(include_url=False, include_input=False))
        raise ServeError("invalid_request", text[:500], field) from None
    except (ValueError, RecursionError) as error:
        raise ServeError("invalid_request", f"the body is no JSON: {error}"[:500]) from None


def check_sizes(n_tokens: int, new: int, limits: Limits) -> None:
    """Refuse prompts and answers that are too long for this process."""
    if n_tokens > limits.prompt_tokens:
        text = f"a prompt of {n_tokens:,} tokens; at most {limits.prompt_tokens:,} are taken"
        raise ServeError("invalid_request", text, "prompt")
    if new > limits.new_tokens:
        text = f"max_tokens = {new:,}; at most {limits.new_tokens:,} are generated"
        raise ServeError("invalid_request", text, "max_tokens")
