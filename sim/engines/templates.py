"""A tokenizer's chat template as engines in this process use it: probed once, then applied.

Templates differ in what they accept and raise whatever their authors chose, so nothing is assumed of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.engines.protocol import BadReply, Turn
from sim.engines.turns import folded
from sim.errors import UserError

_MARK = "zqx"
_USER = Turn("user", "hello")


class ChatTemplate:
    """Turns to tokens; a system turn that the template refuses or drops is put into the first user turn.

    `system_role`: a system turn's text reaches the model. `alternation`: turns must alternate between user and
    assistant. `thinking_switch`: the prompt depends on `enable_thinking`.
    """

    def __init__(self, tokenizer: Any, arguments: Mapping[str, object]) -> None:
        """`arguments` go to the template with every prompt. Raises UserError if there is no template."""
        if tokenizer.chat_template is None:
            raise UserError(
                "model: its tokenizer has no chat template; choose an instruction-tuned checkpoint"
            )
        self._tokenizer = tokenizer
        self._arguments = dict(arguments)
        self.system_role = _MARK in self._attempt((Turn("system", _MARK), _USER))
        self.alternation = not self._attempt((_USER, _USER))
        on, off = (self._attempt((_USER,), enable_thinking=value) for value in (True, False))
        self.thinking_switch = on != off
        if not self._attempt((_USER,)):
            raise UserError(
                "model: its chat template fails on a single user turn; check model.template.arguments"
            )

    def tokens(self, turns: Sequence[Turn]) -> list[int]:
        """The prompt's tokens, up to where the assistant answers."""
        spoken = list(turns) if self.system_role else folded(turns)
        encoded = self._tokenizer.apply_chat_template(
            _messages(spoken), add_generation_prompt=True, tokenize=True, return_dict=True, **self._arguments
        )
        return list(encoded["input_ids"])

    def label_token(self, label: str) -> int:
        """The one token of a label. Raises BadReply for a label of several."""
        tokens = self._tokenizer.encode(label, add_special_tokens=False)
        if len(tokens) != 1:
            raise BadReply(f"label {label!r} is {len(tokens)} tokens in this model; labels must be one token")
        return int(tokens[0])

    def _attempt(self, turns: Sequence[Turn], **arguments: object) -> str:
        """The prompt as text; empty where the template refuses the turns."""
        try:
            text: str = self._tokenizer.apply_chat_template(
                _messages(turns),
                add_generation_prompt=True,
                tokenize=False,
                **{**self._arguments, **arguments},
            )
        except Exception:  # whatever the template's author raises, it means "refused"
            return ""
        return text


def _messages(turns: Sequence[Turn]) -> list[dict[str, str]]:
    return [{"role": turn.role, "content": turn.content} for turn in turns]
