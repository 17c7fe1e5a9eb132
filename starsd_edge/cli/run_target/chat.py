"""`starsd-edge run-target --chat`: talk with the model.

chat_input      lines and Ctrl-C
chat_commands   lines that begin with a slash, the settings that they change, and what was said
../streams      the streams on which text and notices are shown
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from starsd_edge.cli.near_misses import meant_by
from starsd_edge.cli.run_target.chat_commands import (
    Action,
    ChatSettings,
    ChatState,
    as_message,
    commands,
    is_command,
    run_command,
)
from starsd_edge.cli.run_target.chat_input import (
    INTERRUPTED,
    Entry,
    EntryDroppedError,
    Interrupts,
    ReadLine,
    line_reader,
    read_entry,
    without_echo,
)
from starsd_edge.cli.streams import TextStreams, printable, takes_colour
from starsd_edge.errors import StarsdError, UsageError
from starsd_edge.telemetry.rounds import HUB, NGRAM
from starsd_edge.telemetry.summary import Figures, LinkFigures
from starsd_edge.text.conversation import Conversation, Turn, fit

if TYPE_CHECKING:
    from starsd_edge.cli.run_target.options import RunTargetOptions
    from starsd_edge.cli.run_target.setup import TargetSetup
    from starsd_jetson.decoder import Answer, Piece

_COLOURS = {HUB: "\x1b[36m", NGRAM: "\x1b[33m"}
"""Cyan and yellow: told apart on dark and light ground, and by those who do not tell red from green."""
_NO_COLOUR = "tokens cannot be tinted here: it takes a terminal with colours, and no NO_COLOR in the environment"


def run_chat(setup: TargetSetup, options: RunTargetOptions, streams: TextStreams) -> int:
    """Talk until the user leaves; the exit code: 0 from a terminal, 1 from a script of which something was refused.

    Raises:
        UsageError: the model's template takes no system prompt.
        KeyboardInterrupt: Ctrl-C, unless somebody sits at a terminal.
    """
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    settings = ChatSettings(setup.request, options.sampling, options.length.max_tokens)
    conversation = Conversation(options.prompts.system)
    if conversation.system:
        setup.opened.target.tokenizer.encode_chat(conversation.messages("?"))  # a template may take none
    words = [f"/{name}" for name in commands()]
    interrupts = Interrupts()
    chat = Chat(
        setup,
        streams,
        line_reader(sys.stdin, streams, is_terminal, words, interrupts),
        interrupts,
        lambda: secrets.randbits(64),
        (lambda: without_echo(sys.stdin)) if is_terminal else nullcontext,
        is_terminal,
        takes_colour(sys.stdout),
        ChatState(settings, conversation, tint=options.output.tint),
    )
    with interrupts.installed():
        return chat.run()


@dataclass
class Chat:
    """One chat.

    Attributes:
        read_line: where messages come from.
        interrupted: tells of Ctrl-C.
        new_seed: for each answer where none is set.
        undisturbed: while an answer comes, keeps what is typed out of it.
        is_terminal: somebody sits there.
        has_colour: the answers go to something that shows colours.
    """

    setup: TargetSetup
    streams: TextStreams
    read_line: ReadLine
    interrupted: Interrupts
    new_seed: Callable[[], int]
    undisturbed: Callable[[], AbstractContextManager[None]]
    is_terminal: bool
    has_colour: bool
    state: ChatState
    last: tuple[Answer, int] | None = None
    """The last answer and its seed."""
    total: Figures = field(default_factory=Figures)

    def run(self) -> int:
        """Until there is no more to read, or somebody has had enough; the exit code."""
        self._greet()
        code = 0
        while (entry := self._next_entry()) is not None:
            try:
                if not self._take(entry):
                    return code
            except UsageError as error:
                self.streams.say(f"error: {printable(' '.join(str(error).split()))}")
                # A line that is refused is no wrong option (2), after which a service would not be started again.
                code = code if self.is_terminal else StarsdError.exit_code
            if self.interrupted() and not self.is_terminal:
                return INTERRUPTED
        return code

    def _greet(self) -> None:
        if self.is_terminal:
            name = printable(self.setup.opened.target.bundle.path.name)
            self.streams.say(f"{name}, {self.setup.request.context} tokens of context")
            self.streams.say("/help lists the commands; Ctrl-C ends an answer, Ctrl-D the chat")
        if self.state.tint and self.has_colour:
            self._legend()
        elif self.state.tint:
            self.streams.say(_NO_COLOUR)

    def _next_entry(self) -> Entry | None:
        """What is entered next; None at the end. At a terminal, Ctrl-C drops what was typed, and pressed again with
        nothing typed since it is the end.
        """
        presses = 0
        while True:
            try:
                with self.interrupted.reading():
                    entry = read_entry(self.read_line)
            except EOFError:
                return None
            except KeyboardInterrupt as press:
                if not self.is_terminal:
                    raise
                presses = 1 if isinstance(press, EntryDroppedError) else presses + 1
                if presses > 1:
                    return None
                sees_typing = self.interrupted.typed is not None
                self.streams.say(f"{'Ctrl-C again leaves, as do' if sees_typing else 'to leave:'} Ctrl-D and /quit")
                continue
            presses = 0
            if entry.text.strip():
                return entry

    def _take(self, entry: Entry) -> bool:
        """Do as the user says; False when that is to leave."""
        if self.is_terminal and not entry.is_fenced and (meant := meant_by(entry.text)):
            self.streams.say(meant)
            return True
        if entry.is_fenced or not is_command(entry.text):
            self._answer(self.state.conversation, entry.text if entry.is_fenced else as_message(entry.text))
            return True
        outcome = run_command(self.state, entry.text)
        self._check_system(outcome.state.conversation)
        if outcome.action is Action.LEGEND and not self.has_colour:
            raise UsageError(_NO_COLOUR)
        self.state = outcome.state
        if outcome.table:
            self.streams.table(outcome.table)
        for line in outcome.says:
            self.streams.say(printable(line))
        self._act(outcome.action)
        return outcome.action is not Action.QUIT

    def _act(self, action: Action | None) -> None:
        conversation = self.state.conversation
        if action is Action.RETRY:
            self._answer(conversation.without_last(), conversation.turns[-1].message)
        elif action is Action.FORGET:
            self.last, self.total = None, Figures()
        elif action is Action.STATS:
            self._stats()
        elif action is Action.LEGEND:
            self._legend()

    def _check_system(self, conversation: Conversation) -> None:
        """Some templates take no system prompt: that is said when it is set, not at every message."""
        if conversation.system != self.state.conversation.system:
            self.setup.opened.target.tokenizer.encode_chat(replace(conversation, turns=()).messages("?"))

    def _answer(self, conversation: Conversation, message: str) -> None:
        """Answer a message that follows this conversation, and go on from there."""
        settings = self.state.settings
        encode = self.setup.opened.target.tokenizer.encode_chat
        context = self.setup.request.context
        fitted, prompt = fit(conversation, message, encode, context, settings.max_tokens)
        seed = self.new_seed() if settings.sampling.seed is None else settings.sampling.seed
        request = settings.request(prompt, seed)
        with self.undisturbed():
            answer = self.setup.answers.answer(request, self._show, self.interrupted)
        self.streams.end_line()
        if answer.finish_reason != "stop":
            self.streams.say(_remark(answer, settings.max_tokens))
        if fitted.left_out and not conversation.left_out:
            self.streams.say("the context is full: from here on the model no longer reads the oldest turns (/history)")
        self.state = replace(
            self.state, conversation=fitted.with_turn(Turn(message, answer.text, answer.finish_reason))
        )
        self.last = answer, seed
        self.total.add(len(answer.token_ids), answer.prefill_s, answer.decode_s, answer.stats)

    def _show(self, piece: Piece) -> None:
        for span in piece.spans:
            tinted = self.state.tint and self.has_colour
            self.streams.write(span.text, _COLOURS.get(span.origin, "") if tinted else "")

    def _legend(self) -> None:
        self.streams.write("drafted by the hub", _COLOURS[HUB])
        self.streams.write(", ")
        self.streams.write("by local n-grams", _COLOURS[NGRAM])
        self.streams.write(", the rest by the target itself")
        self.streams.end_line()

    def _stats(self) -> None:
        if self.last is None:
            raise UsageError("there are no figures yet: nothing has been answered")
        answer, seed = self.last
        link = self.setup.opened.figures
        figures = Figures()
        figures.add(len(answer.token_ids), answer.prefill_s, answer.decode_s, answer.stats)
        prompt = f"{answer.prompt_tokens} tokens, {answer.reused_tokens} of them read before"
        self.streams.say("last answer")
        self.streams.table(
            [("finish_reason", answer.finish_reason), ("prompt", prompt), *figures.lines(link), ("seed", str(seed))]
        )
        self.streams.say(f"answers of this chat: {self.total.answers}")
        self.streams.table([*self.total.lines(link), ("hub", _hub(self.setup.opened.link is not None, link))])


def _hub(is_named: bool, link: LinkFigures) -> str:
    if not is_named:
        return "none"
    return f"there, drafts with {link.drafter}" if link.is_up else "away"


def _remark(answer: Answer, max_tokens: int) -> str:
    if answer.finish_reason == "cancelled":
        return "[stopped]"
    if len(answer.token_ids) >= max_tokens:
        return f"[cut off after {max_tokens} tokens; /max-tokens sets how many]"
    return "[cut off: the context is full]"
