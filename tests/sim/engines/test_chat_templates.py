"""Chat templates by what they constrain: system turns, alternation, thinking, dates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sim.engines.models import ModelConfig, Template, check_found
from sim.engines.protocol import BadReply, Capabilities, Turn
from sim.engines.templates import ChatTemplate
from sim.errors import UserError

Tokenizers = Callable[[str | None], Any]
FOUND = {  # template: system turn accepted, must alternate, thinking can be switched
    "native": (True, False, False),
    "refused": (False, True, False),
    "folded": (True, True, False),
    "alternating": (True, True, False),
    "thinking": (True, False, True),
    "dated": (True, False, False),
}
ARGUMENTS: dict[str, dict[str, object]] = {
    "thinking": {"enable_thinking": False},
    "dated": {"date_string": "26 Jul 2024"},
}


def applied(tokenizers: Tokenizers, template: str, turns: tuple[Turn, ...], **arguments: object) -> str:
    """The prompt that a template makes of turns, as text."""
    tokenizer = tokenizers(template)
    text: str = tokenizer.decode(ChatTemplate(tokenizer, arguments).tokens(turns))
    return text


@pytest.mark.parametrize("template", FOUND)
def test_what_a_template_demands_is_found(template: str, tokenizer_with: Tokenizers) -> None:
    found = ChatTemplate(tokenizer_with(template), ARGUMENTS.get(template, {}))
    assert (found.system_role, found.alternation, found.thinking_switch) == FOUND[template]


@pytest.mark.parametrize("template", FOUND)
def test_every_word_reaches_the_model_once_and_in_order(
    template: str, tokenizer_with: Tokenizers, shown: tuple[Turn, ...]
) -> None:
    text = applied(tokenizer_with, template, shown, **ARGUMENTS.get(template, {}))
    rules, question = (turn.content for turn in shown)
    assert text.count(rules) == text.count(question) == 1
    assert text.index(rules) < text.index(question) < text.index("<|assistant|>")


@pytest.mark.parametrize("template", ["refused", "folded"])
def test_a_system_turn_without_a_role_of_its_own_opens_the_first_user_turn(
    template: str, tokenizer_with: Tokenizers, shown: tuple[Turn, ...]
) -> None:
    text = applied(tokenizer_with, template, shown)
    assert text == f"<|user|>{shown[0].content}\n\n{shown[1].content}<|end|><|assistant|>"


@pytest.mark.parametrize("template", ["native", "alternating"])
def test_a_native_system_turn_keeps_its_role(
    template: str, tokenizer_with: Tokenizers, shown: tuple[Turn, ...]
) -> None:
    text = applied(tokenizer_with, template, shown)
    assert text == f"<|system|>{shown[0].content}<|end|><|user|>{shown[1].content}<|end|><|assistant|>"


def test_thinking_is_off_only_if_the_argument_says_so(
    tokenizer_with: Tokenizers, shown: tuple[Turn, ...]
) -> None:
    assert applied(tokenizer_with, "thinking", shown).endswith("<|assistant|>")
    off = applied(tokenizer_with, "thinking", shown, enable_thinking=False)
    assert off.endswith("<|assistant|><think></think>")


def test_a_fixed_date_makes_prompts_the_same_every_day(
    tokenizer_with: Tokenizers, shown: tuple[Turn, ...]
) -> None:
    text = applied(tokenizer_with, "dated", shown, date_string="26 Jul 2024")
    assert text.startswith(f"<|system|>Today: 26 Jul 2024 {shown[0].content}<|end|>")


def test_a_prompt_starts_with_what_an_earlier_one_of_the_discussion_started_with(
    tokenizer_with: Tokenizers,
) -> None:
    def prompt(template: str, end: str) -> str:
        turns = (Turn("system", "Rules."), Turn("user", f"Ann: I saw A.\n{end}"))
        return applied(tokenizer_with, template, turns, **ARGUMENTS.get(template, {}))

    for template in FOUND:
        one, other = prompt(template, "x"), prompt(template, "y")
        same = next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        assert one[:same].endswith("Ann: I saw A.\n")


def test_a_label_must_be_one_token(tokenizer_with: Tokenizers) -> None:
    template = ChatTemplate(tokenizer_with("native"), {})
    assert template.label_token("A") != template.label_token("B")
    with pytest.raises(BadReply, match="label 'AB' is 2 tokens"):
        template.label_token("AB")


def test_a_tokenizer_without_a_template_is_refused(tokenizer_with: Tokenizers) -> None:
    with pytest.raises(UserError, match="no chat template"):
        ChatTemplate(tokenizer_with(None), {})


def test_a_template_that_takes_nothing_is_refused(tokenizer_with: Tokenizers) -> None:
    tokenizer = tokenizer_with("native")
    tokenizer.chat_template = "{{ raise_exception('never') }}"
    with pytest.raises(UserError, match="fails on a single user turn"):
        ChatTemplate(tokenizer, {})


def found(system_role: bool = True, alternation: bool = False, thinking_switch: bool = False) -> Capabilities:
    """Capabilities that differ in what a template does."""
    return Capabilities("m", None, True, True, True, system_role, alternation, thinking_switch, True)


def test_thinking_that_cannot_be_switched_off_stops_the_run() -> None:
    model = ModelConfig("m", "m", 10, template=Template(arguments={"enable_thinking": False}))
    check_found(model, found(thinking_switch=True))
    with pytest.raises(UserError, match="sets enable_thinking, but the template ignores it"):
        check_found(model, found())


@pytest.mark.parametrize(
    ("template", "capabilities", "words"),
    [
        (Template(), found(system_role=False), "accepts a system turn: False"),
        (Template(system="refused"), found(), "accepts a system turn: True"),
        (Template(alternation=True), found(), "demands that turns alternate: False"),
    ],
)
def test_a_template_other_than_configured_is_warned_of(
    template: Template, capabilities: Capabilities, words: str
) -> None:
    with pytest.warns(UserWarning, match=words):
        check_found(ModelConfig("m", "m", 10, template=template), capabilities)
