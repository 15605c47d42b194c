"""The app itself: Gradio's ``Blocks``, with an answer for a script that sends too little."""

from __future__ import annotations

import inspect
from typing import Any

import gradio as gr

from demos import _spool


class App(gr.Blocks):
    """``gr.Blocks`` whose named endpoints say what they take.

    Gradio checks how many values arrived where no function of ours runs yet, and tells the caller
    of a named endpoint nothing at all.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        _spool.open_folder()  # before any component, which all remember where files lie
        super().__init__(*args, **options)

    def validate_inputs(self, block_fn: Any, inputs: list[Any]) -> None:
        """As Gradio's; a wrong number of values for a named endpoint is a message.

        Raises:
            gr.Error: it is; the message has the endpoint's name and what it takes.
        """
        wanted = len(block_fn.inputs)
        if block_fn.api_visibility == "public" and len(inputs) != wanted:
            names = ", ".join(inspect.signature(block_fn.fn).parameters)
            raise gr.Error(
                f'/{block_fn.api_name}: "data" has {len(inputs)} values; give {wanted}: {names}',
                print_exception=False,
            )
        super().validate_inputs(block_fn, inputs)

    async def preprocess_data(
        self, block_fn: Any, inputs: list[Any], *more: Any, **named: Any
    ) -> Any:
        """As Gradio's, but for two things. What stands in a file's place and is no upload of this
        server is a message. What was typed into a slider's box comes as it is, for
        ``Number.check`` to judge: Gradio's own check speaks English only, and of a box that was
        emptied it knows no message.

        Raises:
            gr.Error: no upload; no word of what lies at the path that was asked for.
        """
        typed = {i: b.minimum for i, b in enumerate(block_fn.inputs) if isinstance(b, gr.Slider)}
        allowed = [typed.get(i, value) for i, value in enumerate(inputs)]
        try:
            found = await super().preprocess_data(block_fn, allowed, *more, **named)
            for i in typed:
                found[i] = inputs[i]
            return found
        except Exception as error:
            if not any(isinstance(block, gr.File) for block in block_fn.inputs):
                raise
            raise gr.Error(
                "the file is none that was uploaded to this server; upload one and give what was "
                'answered, as {"path": ..., "meta": {"_type": "gradio.FileData"}}',
                print_exception=False,
            ) from error
