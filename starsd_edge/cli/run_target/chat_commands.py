"""The settings of a chat, and its commands as functions: from a state and a line to a new state and what to say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cache, partial
from typing import TYPE_CHECKING, Any, get_args

from typer.models import OptionInfo

from starsd_edge.cli.near_misses import CHAT_WORDS, INSTEAD_IN_CHATS
from starsd_edge.cli.options import OptionField, option_fields
from starsd_edge.cli.run_target.options import LengthOptions, SamplingOptions
from starsd_edge.errors import UsageError, did_you_mean
from starsd_edge.text.conversation import Conversation

if TYPE_CHECKING:
    from starsd_jetson.decoder import Request


RANDOM = "random"
_SEED = "seed"
_MAX_TOKENS = "max_tokens"


@dataclass(frozen=True)
class ChatSettings:
    """Attributes:
    base: what no command changes.
    sampling: without a seed, every answer gets a random one.
    max_tokens: of an answer.
    """

    base: Request = field(repr=False)
    sampling: SamplingOptions
    max_tokens: int

    def request(self, prompt: list[int], seed: int) -> Request:
        """For one answer.

        Raises:
            UsageError: a setting is out of its range, or two contradict each other.
        """
        sampling = self.sampling.params(seed)
        return replace(self.base, prompt=prompt, sampling=sampling, max_tokens=self.max_tokens)

    def shown(self, name: str) -> str:
        """The value of a setting, for people."""
        value = self.max_tokens if name == _MAX_TOKENS else getattr(self.sampling, name)
        return f"{RANDOM} for each answer" if value is None else str(value)

    def changed(self, name: str, text: str) -> ChatSettings:
        """With a setting read from this text.

        Raises:
            UsageError: it is no such value; the settings stay as they were.
        """
        if name == _MAX_TOKENS:
            new = replace(self, max_tokens=_number(name, text))
        elif name == _SEED and text.lower() == RANDOM:
            new = replace(self, sampling=replace(self.sampling, seed=None))
        else:
            new = replace(self, sampling=replace(self.sampling, **{name: _number(name, text)}))
        new.request([], seed=0)
        return new


@cache
def setting_options() -> Mapping[str, OptionField]:
    """The options that have a command, by name."""
    options = {option.name: option for option in option_fields(SamplingOptions) if not option.repeated}
    lengths = {option.name: option for option in option_fields(LengthOptions)}
    return {**options, _MAX_TOKENS: lengths[_MAX_TOKENS]}


def usage(option: OptionField) -> str:
    """How its command is written."""
    value = f"N|{RANDOM}" if option.name == _SEED else "X" if option.type is float else "N"
    return f"/{option.key} {value}"


def help_of(option: OptionField) -> str:
    """What it does."""
    return str(_info(option).help)


def _info(option: OptionField) -> OptionInfo:
    info: OptionInfo = get_args(option.parameter.annotation)[1]
    return info


def _number(name: str, text: str) -> Any:
    option = setting_options()[name]
    try:
        value = option.type(text)
    except ValueError:
        wanted = "a number" if option.type is float else "a whole number"
        raise UsageError(f"/{option.key} takes {wanted}, not {text!r}") from None
    least = _info(option).min
    if least is not None and value < least:
        raise UsageError(f"{option.key} must be at least {least:g}, not {value}")
    return value


PREFIX = "/"
_NONE = "none"
_SILENCE = "nothing has been said"
_MARKS = {"cancelled": "[stopped]", "length": "[cut off]"}


class Action(Enum):
    """What a command leaves to the chat to do."""

    FORGET = auto()
    RETRY = auto()
    STATS = auto()
    LEGEND = auto()
    QUIT = auto()


@dataclass(frozen=True)
class ChatState:
    """Attributes:
    settings: for the next answer.
    tint: whether tokens are coloured by where they are from.
    """

    settings: ChatSettings
    conversation: Conversation = field(default_factory=Conversation)
    tint: bool = False


@dataclass(frozen=True)
class CommandResult:
    """What a command did.

    Attributes:
        state: how things are now.
        says: lines for the user.
        table: labels and texts for the user.
        action: what is still to be done.
    """

    state: ChatState
    says: Sequence[str] = ()
    table: Sequence[tuple[str, str]] = ()
    action: Action | None = None


@dataclass(frozen=True)
class Command:
    """A command that there is.

    Attributes:
        usage: how it is written.
        help: what it does.
        run: does it; its text is what follows the name.
    """

    usage: str
    help: str
    run: Callable[[ChatState, str], CommandResult]


def is_command(line: str) -> bool:
    """Whether this is for the chat; the model is told the rest. Two slashes begin a message that begins with one."""
    return line.startswith(PREFIX) and not line.startswith(2 * PREFIX)


def as_message(line: str) -> str:
    """What the model is told of a line that is no command."""
    return line[1:] if line.startswith(2 * PREFIX) else line


def run_command(state: ChatState, line: str) -> CommandResult:
    """Do what a line beginning with a slash says.

    Raises:
        UsageError: there is no such command, or not with this text; everything stays as it was.
    """
    name, _, text = line.removeprefix(PREFIX).strip().partition(" ")
    command = commands().get(CHAT_WORDS.get(name.lower(), name.lower()))
    if command is None:
        if name.lower() in INSTEAD_IN_CHATS:
            raise UsageError(f"there is no command /{name}: {INSTEAD_IN_CHATS[name.lower()]}")
        meant = did_you_mean(name.lower(), commands(), lambda each: f"/{each}")
        raise UsageError(f"there is no command /{name}{meant or ': /help lists them'} (// begins a message)")
    return command.run(state, text.strip())


@cache
def commands() -> Mapping[str, Command]:
    """All commands by name, in the order of the help."""
    found = {
        "help": Command("/help", "Show this list.", _help),
        "quit": Command("/quit", "Leave, like Ctrl-D.", partial(_act, Action.QUIT)),
        "reset": Command("/reset", "Forget what was said; system prompt and settings stay.", _reset),
        "retry": Command("/retry", "Answer the last message again; the same seed says the same.", _retry),
        "history": Command("/history", "Show what was said, and what of it the model no longer reads.", _history),
        "system": Command("/system TEXT", "The system prompt; none takes it away.", _system),
        "stats": Command("/stats", "Figures of the last answer and of the chat.", partial(_act, Action.STATS)),
        "tint": Command("/tint on|off", "Colour tokens by what drafted them.", _tint),
        "settings": Command("/settings", "Show all values of the following.", _settings),
    }
    for option in setting_options().values():
        found[option.key] = Command(usage(option), help_of(option), partial(_set, option))
    return found


def _act(action: Action, state: ChatState, text: str) -> CommandResult:
    return CommandResult(state, action=action)


def _help(state: ChatState, text: str) -> CommandResult:
    says = (
        'Lines between """ and """ are one message; // begins a message with a slash.',
        "Without a value, a command shows what is set. Ctrl-C ends an answer.",
    )
    return CommandResult(state, says, [(command.usage, command.help) for command in commands().values()])


def _reset(state: ChatState, text: str) -> CommandResult:
    return CommandResult(replace(state, conversation=state.conversation.anew()), [_SILENCE], action=Action.FORGET)


def _retry(state: ChatState, text: str) -> CommandResult:
    if not state.conversation.turns:
        raise UsageError("there is no message to answer again")
    return CommandResult(state, action=Action.RETRY)


def _history(state: ChatState, text: str) -> CommandResult:
    conversation = state.conversation
    says = [f"system: {conversation.system}"] if conversation.system else []
    for number, turn in enumerate(conversation.turns):
        unread = "(not read any more) " if number < conversation.left_out else ""
        said = (turn.answer, _MARKS.get(turn.finish_reason, ""))
        says += [f"{unread}> {turn.message}", " ".join(filter(None, said))]
    return CommandResult(state, says or [_SILENCE])


def _system(state: ChatState, text: str) -> CommandResult:
    if text:
        system = "" if text.lower() == _NONE else text
        state = replace(state, conversation=replace(state.conversation, system=system))
    system = state.conversation.system
    return CommandResult(
        state, [f"system: {system}" if system else "no system prompt (the model's template may have one)"]
    )


def _tint(state: ChatState, text: str) -> CommandResult:
    if not text:
        return CommandResult(state, [f"tint: {'on' if state.tint else 'off'}"])
    if text not in {"on", "off"}:
        raise UsageError(f"/tint is on or off, not {text!r}; now it is {'on' if state.tint else 'off'}")
    state = replace(state, tint=text == "on")
    return CommandResult(state, action=Action.LEGEND if state.tint else None)


def _set(option: OptionField, state: ChatState, text: str) -> CommandResult:
    if text:
        state = replace(state, settings=state.settings.changed(option.name, text))
    return CommandResult(state, [f"{option.key}: {state.settings.shown(option.name)}"])


def _settings(state: ChatState, text: str) -> CommandResult:
    values = [(option.key, state.settings.shown(option.name)) for option in setting_options().values()]
    return CommandResult(state, table=values)
