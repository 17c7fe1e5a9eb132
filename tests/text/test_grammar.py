"""Answers held to JSON: valid whatever the model would say, and the same with and without drafts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import llguidance
import numpy as np
import pytest
import tokenizers

import starsd_edge
from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.manifest import TextRules
from starsd_edge.errors import UsageError
from starsd_edge.speculation.penalties import Penalties
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_edge.telemetry.rounds import GRAMMAR, HUB
from starsd_edge.text.grammar import Grammar, json_grammar, json_grammar_of_file
from starsd_edge.text.tokenizer import Tokenizer
from starsd_jetson.decoder import Answer, Request, decode
from starsd_jetson.drafting import DraftSource, NgramDrafts, NoDrafts
from starsd_jetson.serve.answer_form import Tools, call_grammar
from starsd_jetson.serve.schema import Function
from starsd_jetson.serve.tool_calls import ToolForm
from tests.support.draft_sources import half_knowing, knowing
from tests.support.echo_model import ASSISTANT, EOS, USER, EchoEngine, byte_tokenizer
from tests.support.prefix_engine import PrefixEngine
from tests.support.reference_sampling import reference_token
from tests.support.small_tokenizers import byte_fallback, byte_level, metaspace

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "born": {"type": "integer", "minimum": 1900, "maximum": 2100},
        "kind": {"enum": ["owner", "guest", "service"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        "home": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]},
    },
    "required": ["name", "born", "kind", "tags", "home"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"street_and_number": {"type": "string", "maxLength": 4}},
            "required": ["street_and_number"],
            "additionalProperties": False,
        }
    },
}
SCHEMAS = (PERSON, {"enum": ["yes", "no", 3, None]}, {"type": "array", "items": {"const": "Ünïcödé"}, "maxItems": 2})
BACKENDS = {"byte level": byte_level, "byte fallback": byte_fallback, "metaspace": metaspace}
TEMPERATURES = (0.0, 1.0)


def tokenizer_of(backend: tokenizers.Tokenizer) -> Tokenizer:
    """With two tokens that end an answer."""
    ends = [backend.token_to_id("</s>"), backend.token_to_id("<|im_end|>")]
    return Tokenizer(backend, TextRules(bos_id=None, eos_ids=ends, add_bos=False))


def engine_for(tokenizer: Tokenizer, seed: int, **changes: Any) -> PrefixEngine:
    """A model that would write anything; its last ids are padding with the highest logits."""
    return PrefixEngine(seed, vocab_size=tokenizer.size + 5, padding=5, max_context=200, **changes)


def asked(schema: dict[str, Any], seed: int, temperature: float, **changes: Any) -> Request:
    sampling = SamplingParams(temperature=temperature, seed=seed)
    return replace(
        Request((5, 6, 7), sampling, 150, 200, DraftShape(12, 6, 3), grammar=json_grammar(schema)), **changes
    )


def by_definition(engine: PrefixEngine, tokenizer: Tokenizer, wanted: Request) -> list[int]:
    """The answer one token after the other, with a parser that never goes back."""
    assert wanted.grammar is not None
    known = llguidance.LLTokenizer(
        tokenizer._backend.to_str(), n_vocab=tokenizer.size, eos_token=sorted(tokenizer.eos_ids)
    )
    answer: list[int] = []
    parser = llguidance.LLMatcher(known, wanted.grammar.text)
    while len(answer) < wanted.max_tokens:
        bits = np.unpackbits(np.frombuffer(parser.compute_bitmask(), np.uint8), bitorder="little")
        allowed = {token for token in range(tokenizer.size) if bits[token]} - tokenizer.eos_ids
        if parser.is_accepting():
            allowed |= tokenizer.eos_ids
        forbidden = tuple((token, -np.inf) for token in range(tokenizer.size) if token not in allowed)
        logits = engine.prefix_logits([*wanted.prompt, *answer])[: tokenizer.size].tolist()
        token = reference_token(logits, replace(wanted.sampling, logit_bias=forbidden), wanted.prompt, answer)
        if token in tokenizer.eos_ids:
            return answer
        assert parser.consume_token(token)
        answer.append(token)
    return answer


def answered(engine: PrefixEngine, tokenizer: Tokenizer, wanted: Request, source: DraftSource) -> Answer:
    return decode(engine, tokenizer, wanted, source, clock=lambda: 0.0)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_an_answer_fits_its_schema_and_is_the_one_without_drafts(name: str, temperature: float) -> None:
    tokenizer = tokenizer_of(BACKENDS[name]())
    grammar_rounds = 0
    for seed in range(2):
        for schema in SCHEMAS:
            wanted = asked(schema, seed, temperature)
            expected = by_definition(engine_for(tokenizer, seed), tokenizer, wanted)

            def follow(text: Sequence[int], expected: list[int] = expected) -> int:
                at = len(text) - 3
                return expected[at] if at < len(expected) else min(tokenizer.eos_ids)

            sources = (NoDrafts(), NgramDrafts(), knowing(follow), half_knowing(follow, seed, tokenizer.size))
            for source in sources:
                answer = answered(engine_for(tokenizer, seed), tokenizer, wanted, source)
                assert list(answer.token_ids) == expected
                grammar_rounds += answer.stats.by_origin.get(GRAMMAR, 0)
            if answer.finish_reason == "stop":
                jsonschema.validate(json.loads(answer.text), schema)
            else:
                assert (schema, answer.finish_reason) == (PERSON, "length"), "spaces without end"
    assert grammar_rounds > 0


@pytest.mark.parametrize("form", ToolForm)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_calls_in_a_text_are_those_without_drafts(form: ToolForm, temperature: float) -> None:
    """Drafts end in the middle of a mark and behind it, and parsers go back over both."""
    tokenizer = byte_tokenizer()
    function = Function("f", parameters={"properties": {"a": {"enum": ["x</tool_call>", "y"]}}}, strict=True)
    tools = Tools(form, [(0, function)], "tools[{}]")
    call = {ToolForm.HERMES: "<tool_call>{}</tool_call>", ToolForm.MISTRAL: "[TOOL_CALLS][{}]", ToolForm.LLAMA: "{}"}
    key = "parameters" if form is ToolForm.LLAMA else "arguments"
    written = call[form].replace("{}", f'{{"name": "f", "{key}": {{"a": "x</tool_call>"}}}}')
    lead = "" if form is ToolForm.LLAMA else "\N{SNOWMAN} <tool "
    calls = 0
    for message, seed in ((f"{lead}{written}", 1), (f"{lead}{written.replace('x<', 'z<')}", 2), ("plain", 3)):
        prompt = (USER, *tokenizer.encode(message), ASSISTANT)
        sampling = SamplingParams(temperature=temperature, seed=seed)
        wanted = Request(prompt, sampling, 120, 250, DraftShape(12, 6, 3), grammar=call_grammar(tools, tokenizer))
        expected = by_definition(EchoEngine(250), tokenizer, wanted)

        def follow(text: Sequence[int], prompt: Sequence[int] = prompt, expected: list[int] = expected) -> int:
            at = len(text) - len(prompt)
            return expected[at] if at < len(expected) else EOS

        for source in (NoDrafts(), NgramDrafts(), knowing(follow), half_knowing(follow, seed, tokenizer.size)):
            assert list(answered(EchoEngine(250), tokenizer, wanted, source).token_ids) == expected
        calls += tokenizer.decode(expected).count(f'"{key}"')
    assert calls >= 2 or temperature


def test_what_the_grammar_forces_is_drafted_without_a_hub() -> None:
    tokenizer = tokenizer_of(byte_level())
    wanted = asked({"const": "The hub drafts, the target verifies."}, 1, 0.0)
    drafted = answered(engine_for(tokenizer, 1), tokenizer, wanted, NoDrafts())
    plain = answered(engine_for(tokenizer, 1), tokenizer, replace(wanted, shape=DraftShape(0, 0)), NoDrafts())
    assert (drafted.token_ids, drafted.text) == (plain.token_ids, plain.text)
    assert json.loads(drafted.text) == "The hub drafts, the target verifies."
    assert plain.stats.by_origin == {"none": plain.stats.rounds}
    assert drafted.stats.accepted > 0
    assert drafted.stats.rounds < plain.stats.rounds


def test_draft_tokens_that_the_grammar_forbids_are_not_verified() -> None:
    tokenizer = tokenizer_of(byte_level())
    constraint = tokenizer.constraint(json_grammar({"enum": ["the hub", "the target"]}))
    quote, t, he, space_h = tokenizer.encode('"')[0], *tokenizer.encode("the hub")[:3]
    constraint.append([quote])
    tree = DraftTree(np.array([he, t, t, he, space_h, he]), np.array([-1, 0, -1, 2, 3, 4]))
    assert constraint.prune(tree) == DraftTree(np.array([t, he, space_h]), np.array([-1, 0, 1]))
    strange = DraftTree(np.array([-1, 2**40, tokenizer.size, t, -(2**40)]), np.array([-1, -1, -1, -1, 3]))
    assert constraint.prune(strange) == DraftTree.chain([t])
    assert constraint.allowed([t])[he]
    assert not constraint.allowed([t, he])[he]
    assert constraint.allowed([])[t]
    end = min(tokenizer.eos_ids)
    whole = tokenizer.encode('the hub"')
    assert constraint.allowed(whole)[end]
    assert constraint.allowed([*whole, end]).all(), "behind the end nothing counts"
    assert not constraint.allowed(whole[:-1])[end]


def test_answers_of_one_grammar_do_not_touch_each_other() -> None:
    tokenizer = tokenizer_of(byte_level())
    words = ["the hub", "the target"]
    first, second = (tokenizer.constraint(json_grammar({"enum": words})) for _ in range(2))
    for constraint, word in ((first, words[0]), (second, words[1])):
        constraint.append(tokenizer.encode('"'))
        *begin, end = tokenizer.encode(word)
        constraint.append(begin)
        assert constraint.allowed([])[end]
    third = tokenizer.constraint(json_grammar({"enum": words}))
    assert third.allowed([]).sum() == 1, "a quotation mark"


def test_other_rules_of_sampling_apply_to_what_is_allowed() -> None:
    tokenizer = tokenizer_of(byte_level())
    digits = {"type": "string", "pattern": "^[0-9]{30}$"}
    penalties = Penalties(repetition=1.3, presence=0.5, frequency=0.7)
    for temperature in TEMPERATURES:
        sampling = SamplingParams(
            temperature=temperature, seed=3, top_k=7, top_p=0.9, min_p=0.01, penalties=penalties, min_tokens=140
        )
        wanted = asked(digits, 3, temperature, sampling=sampling)
        expected = by_definition(engine_for(tokenizer, 3), tokenizer, wanted)
        answer = answered(engine_for(tokenizer, 3), tokenizer, wanted, NgramDrafts())
        assert list(answer.token_ids) == expected
        assert (len(json.loads(answer.text)), answer.finish_reason) == (30, "stop")


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "objekt"}, "the JSON schema cannot be used: Invalid type: objekt"),
        ({"$ref": "http://127.0.0.1:1/schema"}, "does not fetch"),
        ({"type": "string", "pattern": "(?=a)b"}, "the JSON schema cannot be used"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {}}, "not"),
        ({"type": "string", "pattern": "("}, "regex parse error: error: unclosed group"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "no text fits it"),
        (False, "Unsatisfiable schema"),
        ({"const": float("nan")}, "the JSON schema is not JSON"),
        ({"const": "x" * 300_000}, "at most 131072 are read"),
    ],
)
def test_a_schema_that_cannot_be_held_to_is_refused(schema: dict[str, Any] | bool, says: str) -> None:
    with pytest.raises(UsageError, match=r"JSON schema") as refused:
        tokenizer_of(byte_level()).constraint(json_grammar(schema))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(UsageError, match="do not ignore the end of sequence"):
        asked(PERSON, 0, 0.0, ignore_eos=True)
    endless = Tokenizer(byte_level(), TextRules(bos_id=None, eos_ids=[], add_bos=False))
    with pytest.raises(UsageError, match="would never end"):
        endless.constraint(json_grammar())
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    with pytest.raises(UsageError, match="can be held to a grammar: its tokenizer"):
        Tokenizer(words, TextRules(bos_id=None, eos_ids=[1], add_bos=False)).constraint(json_grammar())
    tokenizer = tokenizer_of(byte_level())
    minus_all = tuple((token, -np.inf) for token in range(tokenizer.size))
    wanted = asked(PERSON, 0, 0.0, sampling=SamplingParams(logit_bias=minus_all))
    with pytest.raises(UsageError, match="the answer's format forbid every token"):
        answered(engine_for(tokenizer, 0), tokenizer, wanted, NoDrafts())


def test_any_json_object() -> None:
    tokenizer = tokenizer_of(byte_level())
    grammar: Grammar = json_grammar()
    constraint = tokenizer.constraint(grammar)
    assert constraint.allowed([])[tokenizer.encode("{")[0]]
    assert not constraint.allowed([])[tokenizer.encode("[")[0]]
    constraint.append(tokenizer.encode('{"a": [1, {"b": null}]'))
    assert constraint.allowed(tokenizer.encode("}"))[min(tokenizer.eos_ids)]
    for anything in (True, {}):
        assert tokenizer.constraint(json_grammar(anything)).allowed([])[tokenizer.encode("[")[0]]


def test_a_hub_of_any_kind_is_asked_as_before() -> None:
    tokenizer = tokenizer_of(byte_level())
    wanted = asked({"const": "a, b; c! d? e"}, 2, 1.0)
    expected = by_definition(engine_for(tokenizer, 2), tokenizer, wanted)
    source = knowing(lambda text: (expected + 3 * [min(tokenizer.eos_ids)])[min(len(text) - 3, len(expected))], depth=9)
    answer = answered(engine_for(tokenizer, 2), tokenizer, wanted, source)
    assert list(answer.token_ids) == expected
    assert answer.stats.by_origin.get(HUB, 0) > 0


def test_a_real_model_writes_json_and_its_drafts_change_nothing(tiny_bundles: dict[str, Bundle]) -> None:
    schema = {"enum": ["the hub drafts", "the target verifies", 12, None]}
    grammar = starsd_edge.json_grammar(schema)
    answers = []
    for drafts in (starsd_edge.DraftSettings(), starsd_edge.DraftSettings(speculation=False)):
        with starsd_edge.open_target(tiny_bundles["fp32"], drafts=drafts, threads=1) as target:
            for temperature in TEMPERATURES:
                sampling = SamplingParams(temperature=temperature, seed=4)
                answers.append(target.answer((3, 4, 5), sampling, max_tokens=40, grammar=grammar))
    drafted, plain = answers[:2], answers[2:]
    assert [answer.token_ids for answer in drafted] == [answer.token_ids for answer in plain]
    for answer in answers:
        jsonschema.validate(json.loads(answer.text), schema)
    assert all(answer.stats.drafted == 0 for answer in plain)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (None, "cannot read"),
        ("{", "is no JSON schema"),
        ("[" * 90_000, "is no JSON schema"),
        ("x" * 140_000, "too long"),
    ],
)
def test_a_schema_file_that_cannot_be_read_is_one_line(tmp_path: Path, written: str | None, says: str) -> None:
    path = tmp_path / "schema.json"
    if written is not None:
        path.write_text(written)
    with pytest.raises(UsageError, match=says) as refused:
        json_grammar_of_file(path)
    assert "\n" not in str(refused.value)
