"""A target that other programs embed, and that `run-target` is built on: a bundle opened, linked to a hub, answering.

    with open_target("smollm2-135m-fp32", hub="ws://desk:8317", key_file="hub.token") as target:
        for piece in target.stream("Why is the sky blue?"):
            print(piece.text, end="", flush=True)

The text is that of the model alone, whatever the hub does. A target belongs to one thread at a time, and its answers
come one after the other, until `OpenTarget.requests` gives it a thread of its own that answers several at once.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

from starsd_edge.bundles.bundle import Bundle, load_bundle
from starsd_edge.bundles.catalogue import find_bundle
from starsd_edge.device.host import name_of_target
from starsd_edge.discovery import AUTO, choose_hub, find_hubs
from starsd_edge.doctor.curve_store import kept_curves
from starsd_edge.errors import UsageError
from starsd_edge.key_file import read_token
from starsd_edge.planning.pass_times import VerifyCurves
from starsd_edge.protocol.messages import Hello
from starsd_edge.runtime.loading import check_device
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.summary import LinkFigures
from starsd_edge.text.conversation import Conversation, Turn, fit
from starsd_edge.text.grammar import Grammar
from starsd_jetson.answer_set import AnswerSet, Limits
from starsd_jetson.answers import Answer, Piece, Request
from starsd_jetson.decoder import whole
from starsd_jetson.draft_size import draft_shape, hub_draft_shape
from starsd_jetson.drafting import DraftSource, NgramDrafts, NoDrafts
from starsd_jetson.hub_address import HubAddress
from starsd_jetson.hub_drafting import FindChannel, HubDrafts
from starsd_jetson.hub_endings import HubError
from starsd_jetson.hub_link import HubLink
from starsd_jetson.kept_channel import KeptChannels
from starsd_jetson.kept_sequences import KeptSequences
from starsd_jetson.reporting import Reporter
from starsd_jetson.requests import Requests
from starsd_jetson.target import FeatureForm, Target
from starsd_jetson.wait_policy import WaitPolicy

log = logging.getLogger(__name__)

DEFAULT_MAX_TOKENS = 256
"""Most tokens of an answer where the caller names no number."""
FIRST_CONNECT_S = 1.0
"""Seconds that the first answer waits for a hub that is not required. A hub that is up answers sooner; one that is not
must not hold up the answer.
"""
REQUIRED_CONNECT_S = 10.0
"""Seconds that a required hub has to welcome the target before opening fails."""
USUAL_CONTEXTS = 4
"""Contexts that the KV of several requests has room for where the caller names no budget."""
ROOM_STEP = 256
"""The room of a sequence is a multiple of so many tokens: finished ones fit the next request more often."""
_HUB_LEFT_ALONE = "the hub is left alone: --no-speculation decodes token by token"


@dataclass(frozen=True)
class DraftSettings:
    """How drafts are asked for.

    Attributes:
        speculation: False decodes token by token, and no hub is asked.
        nodes: most draft tokens of a round; None leaves the number to the program.
        depth: most levels of a draft tree, which is most draft tokens in a row; None leaves it to the program.
        branching: most children of one node; 1 asks for chains, None leaves it to the program.
        wait_s: seconds to wait for every draft, all of which is then verified; None waits and verifies as far as it
            pays.
        window: number of last tokens of a text that the hub is shown; None shows all of it.
        features: how features travel to a hub that drafts with a head.
        allow_inexact: verify trees also with weights for which only chains are exact.
    """

    speculation: bool = True
    nodes: int | None = None
    depth: int | None = None
    branching: int | None = None
    wait_s: float | None = None
    window: int | None = None
    features: FeatureForm = "auto"
    allow_inexact: bool = False


@dataclass(frozen=True)
class RequestLimits:
    """How many requests `OpenTarget.requests` takes in at once.

    Attributes:
        most_open: answers that are worked at by turns.
        most_waiting: requests beyond those that wait for their turn to begin; one more is refused with `BusyError`.
        kv_tokens: most tokens that all sequences, those of answers and those kept for later ones, have room for; None
            takes four times the context.
    """

    most_open: int = 8
    most_waiting: int = 32
    kv_tokens: int | None = None


@dataclass(frozen=True)
class HubAccess:
    """A hub, and how a target connects to it.

    Attributes:
        name: name of the target in the hub's monitor and log; None takes this machine's name.
        required: fail if the hub cannot be reached, instead of going on without it.
        notice: takes a line about the link, from any thread, once it is clear that the target goes on.
    """

    address: HubAddress
    name: str | None = None
    required: bool = False
    notice: Callable[[str], None] = lambda line: None


def hub_address(url: str, key_file: Path | str | None = None) -> HubAddress:
    """A hub's checked address with the key from a file.

    Args:
        url: an address, or "auto" for the one hub on the local network that shows the key (see
            `starsd_edge.discovery`); that takes some seconds, and the extra `discover`.

    Raises:
        UsageError: the address or the file cannot be used, or there is no such hub.
    """
    key = None if key_file is None else read_token(Path(key_file))
    if url == AUTO:
        url = choose_hub(find_hubs(), key)
        log.info("found the hub at %s", url)
    return HubAddress.parse(url, key)


def link_to(
    address: HubAddress,
    hello: Hello,
    notice: Callable[[str], None] = lambda line: None,
    window: int | None = None,
    luck: Callable[[], float] = random.random,
) -> HubLink:
    """A link to a hub, on this machine's clock; used as a context manager. Every link is made here.

    Args:
        notice: takes a line about the link, from any thread.
        window: see `DraftSettings`.
        luck: numbers from 0 to 1 for the times between attempts to connect.
    """
    return HubLink(address, hello, notice, time.monotonic, luck, window)


def hub_drafts(
    find_channel: FindChannel,
    wait_s: float | None = None,
    measured: VerifyCurves | None = None,
    fallback: DraftSource | None = None,
) -> HubDrafts:
    """Drafts of the hub.

    Args:
        wait_s: see `DraftSettings`.
        measured: times of verify passes.
        fallback: drafts whenever the hub has none; None takes local n-grams.
    """
    return HubDrafts(find_channel, fallback or NgramDrafts(measured), WaitPolicy(wait_s, measured), time.monotonic)


def open_target(
    bundle: str | Path | Bundle,
    *,
    hub: str | HubAddress | None = None,
    key_file: Path | str | None = None,
    require_hub: bool = False,
    device: str = "cpu",
    threads: int | None = None,
    context: int | None = None,
    name: str | None = None,
    drafts: DraftSettings | None = None,
    notice: Callable[[str], None] = lambda line: None,
) -> OpenTarget:
    """Open a target; close it, or use it as a context manager.

    Args:
        bundle: an opened one, or the directory or name of one that `starsd-edge export` wrote.
        hub: like "ws://desk:8317"; without one the target drafts by itself.
        key_file: file with the hub's key.
        require_hub: fail if the hub cannot be reached.
        device: "cpu", "cuda" or "jetson".
        threads: threads of the engine; None takes one per core.
        context: most tokens of prompt and answer together; None takes what the bundle holds.
        name: for the hub's monitor; None takes this machine's.
        notice: takes lines about the link, from any thread.

    Raises:
        StarsdError: the bundle, the engine or the address cannot be used, or a required hub cannot be reached. Its
            text is one line that says what to do.
    """
    check_device(device)
    address = hub_address(hub, key_file) if isinstance(hub, str) else hub
    target = OpenTarget.load(
        bundle if isinstance(bundle, Bundle) else load_bundle(find_bundle(str(bundle))),
        device,
        threads,
        context,
        drafts or DraftSettings(),
        has_hub=address is not None,
    )
    try:
        if address is not None:
            target.connect(HubAccess(address, name, require_hub, notice))
    except BaseException:
        target.close()
        raise
    return target


class OpenTarget:
    """A bundle that answers.

    Attributes:
        target: its engine and tokenizer.
        context: most tokens of prompt and answer together.
        shape: the largest draft that is ever asked for.
        link: to the hub; None without one.
    """

    def __init__(
        self, target: Target, context: int, shape: DraftShape, drafts: DraftSettings, measured: VerifyCurves | None
    ) -> None:
        self.target = target
        self.context = context
        self.shape = shape
        self.link: HubLink | None = None
        self._drafts = drafts
        self._measured = measured
        self._stack = ExitStack()
        self._single: Answers | None = None
        self._requests: Requests | None = None

    @classmethod
    def load(
        cls,
        bundle: Bundle,
        device: str,
        threads: int | None,
        context: int | None,
        drafts: DraftSettings,
        *,
        has_hub: bool,
    ) -> OpenTarget:
        """Load the engine; no hub is asked yet. Arguments as of `open_target`.

        Args:
            has_hub: whether `connect` follows: a hub is asked for larger drafts.

        Raises:
            StarsdError: see `open_target`.
        """
        log.debug("loading %s", bundle.manifest.name)
        target = Target.open(bundle, device, threads, allow_inexact=drafts.allow_inexact)
        kept = kept_curves(bundle.manifest, threads, device, target.engine.spec.digest)
        measured = None if kept is None else kept.curves
        if kept is not None:
            log.debug("first drafts by the times of verify passes measured at %s UTC", kept.stored.measured_at)
        said = (drafts.depth, drafts.nodes, drafts.branching)
        if has_hub:
            shape = hub_draft_shape(target.engine.spec, *said, None if measured is None else measured.at(0))
        else:
            shape = draft_shape(target.engine.spec, *said)
        return cls(target, target.context(context), shape, drafts, measured)

    def connect(self, access: HubAccess) -> None:
        """Link to a hub. One that is there drafts from the first answer on; one that is not may come later.

        Raises:
            HubError: it is required and cannot be reached.
        """
        if not self._drafts.speculation:
            access.notice(_HUB_LEFT_ALONE)
            return
        notices = _Notices(access.notice)
        hello = self.target.hello(name_of_target(access.name), self.shape, self.context, self._drafts.features)
        self.link = self._stack.enter_context(link_to(access.address, hello, notices, self._drafts.window))
        try:
            self.link.wait_for_hub(REQUIRED_CONNECT_S if access.required else FIRST_CONNECT_S)
        except HubError as error:
            if access.required:
                raise HubError(f"{error}; without --require-hub the target goes on by itself") from None
        notices.release()

    def request(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        grammar: Grammar | None = None,
    ) -> Request:
        """A request that fits this target's context and draft shape; see `Request` for its fields.

        Raises:
            UsageError: a logit bias names no token, fewer tokens are allowed than are asked for, or the grammar cannot
                be used.
        """
        sampling = sampling or SamplingParams()
        sampling.check_tokens(self.target.tokenizer.size)
        shape = self.shape if self._drafts.speculation else DraftShape(0, 0)
        return Request(prompt, sampling, max_tokens, self.context, shape, tuple(stop), ignore_eos, grammar)

    def answer(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        grammar: Grammar | None = None,
        raw: bool = False,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """Answer a prompt.

        Args:
            prompt: text, put into the model's chat template where it has one, or token ids as they are.
            sampling: how tokens are chosen; None takes the likeliest.
            stop: texts that end the answer and are no part of it.
            ignore_eos: an end-of-sequence token does not end the answer.
            grammar: what the answer may look like, as `json_grammar` makes it; None for any text.
            raw: take a text as it is, without the chat template.
            cancelled: asked between passes; True ends the answer with what it has.

        Raises:
            UsageError: the prompt is empty or too long, or an option is out of range.
        """
        return whole(
            self.stream(
                prompt,
                sampling,
                max_tokens=max_tokens,
                stop=stop,
                ignore_eos=ignore_eos,
                grammar=grammar,
                raw=raw,
                cancelled=cancelled,
            )
        )

    def stream(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        grammar: Grammar | None = None,
        raw: bool = False,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Generator[Piece, None, Answer]:
        """`answer`, piece by piece. To close the generator ends the answer."""
        tokens = self.target.encode(prompt, raw) if isinstance(prompt, str) else prompt
        request = self.request(tokens, sampling, max_tokens, stop, ignore_eos, grammar)
        if self._single is None:
            self._single = self.answers()
        return self.streamed(request, cancelled, self._single)

    def streamed(
        self, request: Request, cancelled: Callable[[], bool], answers: Answers
    ) -> Generator[Piece, None, Answer]:
        """Answer a request by `answers`, or while there is one by the thread that answers several."""
        if self._requests is not None and not self._requests.is_closed:
            return self._requests.stream(request, cancelled)
        return answers.stream(request, cancelled)

    def answers(self, *, keeps_text: bool = False) -> Answers:
        """Something that answers requests of this target on the caller's thread.

        Args:
            keeps_text: each prompt begins with most of the text before, as in a chat: KV and the hub's session are kept
                from answer to answer.
        """
        sequences = KeptSequences(self.target.engine, self.context if keeps_text else None, is_keeping=keeps_text)
        channels = None
        if self.link is not None and keeps_text:
            channels = KeptChannels(self.link.open_channel)
            self._stack.callback(channels.close)
        return Answers(self._answer_set(sequences, channels, Limits()))

    def requests(self, limits: RequestLimits | None = None) -> Requests:
        """Answer several requests at once, on a thread that this starts; close it, or use it as a context manager.
        Until then that thread alone uses the engine: `answer`, `stream` and chats hand their requests to it.

        Args:
            limits: how many requests are taken in, and how much KV they may use.

        Raises:
            UsageError: the KV budget is smaller than the context, or such a thread runs already.
        """
        if self._requests is not None and not self._requests.is_closed:
            raise UsageError("this target answers several requests already: close what `requests` gave before")
        limits = limits or RequestLimits()
        budget = limits.kv_tokens or USUAL_CONTEXTS * self.context
        if budget < self.context:
            raise UsageError(f"a KV budget of {budget} tokens holds no context of {self.context}: raise the budget")
        wake = threading.Event()
        channels = None
        if self.link is not None:
            self.link.listen(wake.set)
            channels = KeptChannels(self.link.open_channel, partial(_most_sessions, self.link, limits.most_open))
        sequences = KeptSequences(self.target.engine, budget)
        answer_set = self._answer_set(sequences, channels, Limits(limits.most_open, limits.most_waiting), self._room)
        on_close = (lambda: None) if channels is None else channels.close
        self._requests = self._stack.enter_context(Requests(answer_set, time.monotonic, wake, on_close))
        return self._requests

    def _room(self, request: Request) -> int:
        """Tokens that a request's sequence needs room for; all that there may be where sequences are of one size."""
        if self.target.bundle.manifest.graph.kv_strategy == "inplace":
            return request.context
        needed = len(request.prompt) + request.max_tokens
        return min(request.context, -(-needed // ROOM_STEP) * ROOM_STEP)

    def _answer_set(
        self,
        sequences: KeptSequences,
        channels: KeptChannels | None,
        limits: Limits,
        room: Callable[[Request], int] = lambda request: request.context,
    ) -> AnswerSet:
        reporter = None if self.link is None else Reporter(self.link.report, time.monotonic)
        return AnswerSet(
            self.target.engine,
            self.target.tokenizer,
            lambda: self._source(channels),
            sequences,
            time.monotonic,
            limits,
            room=room,
            on_round=reporter.round if reporter else lambda done: None,
            on_idle=reporter.idle if reporter else lambda: None,
        )

    def chat(self, system: str = "") -> Chat:
        """Begin a chat.

        Raises:
            UsageError: the bundle has no chat template, or that takes no system prompt.
        """
        if not self.target.tokenizer.has_chat_template:
            raise UsageError(f"{self.target.bundle.path.name} has no chat template: it answers prompts only")
        conversation = Conversation(system)
        self.target.tokenizer.encode_chat(conversation.messages("?"))
        return Chat(self, conversation)

    @property
    def figures(self) -> LinkFigures:
        """Figures of the link to the hub; empty ones without a hub. Each `Answer` holds its own figures."""
        return LinkFigures() if self.link is None else self.link.figures

    def close(self) -> None:
        """End the link to the hub. Answers already given stay valid."""
        self._stack.close()

    def __enter__(self) -> OpenTarget:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _source(self, channels: KeptChannels | None) -> DraftSource:
        if not self._drafts.speculation:
            return NoDrafts()
        if self.link is None:
            return NgramDrafts(self._measured)
        find_channel: FindChannel = self.link.open_channel if channels is None else channels.open
        return hub_drafts(find_channel, self._drafts.wait_s, self._measured)


class Answers:
    """Answers requests on the thread of the caller.

    Args:
        answer_set: works at them.
    """

    def __init__(self, answer_set: AnswerSet) -> None:
        self._set = answer_set

    def stream(self, request: Request, cancelled: Callable[[], bool] = lambda: False) -> Generator[Piece, None, Answer]:
        """Answer one request; see `starsd_jetson.decoder.stream`."""
        return self._set.stream(request, cancelled)

    def answer(
        self,
        request: Request,
        on_piece: Callable[[Piece], None] = lambda piece: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """Answer one request in one call; `on_piece` is called with every piece as it comes."""
        return whole(self.stream(request, cancelled), on_piece)


class Chat:
    """A chat with a target. Each message is answered by the model's chat template after all that was said.

    Attributes:
        conversation: what was said so far; when the context is full, the oldest turns are no longer read.
    """

    def __init__(self, target: OpenTarget, conversation: Conversation) -> None:
        self.conversation = conversation
        self._target = target
        self._answers = target.answers(keeps_text=True)

    def answer(
        self,
        message: str,
        sampling: SamplingParams | None = None,
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        stop: Sequence[str] = (),
        grammar: Grammar | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """Answer a message; arguments and errors as of `OpenTarget.answer`."""
        return whole(
            self.stream(message, sampling, max_tokens=max_tokens, stop=stop, grammar=grammar, cancelled=cancelled)
        )

    def stream(
        self,
        message: str,
        sampling: SamplingParams | None = None,
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        stop: Sequence[str] = (),
        grammar: Grammar | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Generator[Piece, None, Answer]:
        """`answer`, piece by piece. An answer that is not read to its end is no part of the chat."""
        encode = self._target.target.tokenizer.encode_chat
        fitted, prompt = fit(self.conversation, message, encode, self._target.context, max_tokens)
        request = self._target.request(prompt, sampling, max_tokens, stop, grammar=grammar)
        answer = yield from self._target.streamed(request, cancelled, self._answers)
        self.conversation = fitted.with_turn(Turn(message, answer.text, answer.finish_reason))
        return answer


def _most_sessions(link: HubLink, wanted: int) -> int:
    """Sessions that may be open at once: as many as wanted, if the hub takes so many of one target."""
    return wanted if link.welcome is None else min(wanted, link.welcome.max_sessions)


class _Notices:
    """Lines about the link, held back until it is clear that the target goes on: if not, the error says it all."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._lock = threading.Lock()
        self._held: list[str] | None = []

    def __call__(self, line: str) -> None:
        with self._lock:
            if self._held is not None:
                self._held.append(line)
                return
        self._notice(line)

    def release(self) -> None:
        """Show the lines held back; later lines are shown at once."""
        with self._lock:
            held, self._held = self._held or [], None
        for line in held:
            self._notice(line)
