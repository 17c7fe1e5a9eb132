"""Words that people type for a command or in a chat because another program has them, and what is meant here.

A word that has one meaning here is done (`help`, `version`); one that has none is answered with what to use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from starsd_edge.cli.shared_options import model_and_bundle_names
from starsd_edge.errors import UsageError, did_you_mean

_IN_CHATS = "that is for chats; on the command line, Ctrl-C ends what runs"
_NO_SERVICE = "Ctrl-C or SIGTERM ends a command; `ps` shows those that run on this machine"
_WATCHED = "`monitor HUB` shows a hub and its targets, `ps` what runs on this machine"
_STARTS = "`run-draft` starts a hub, `run-target` and `serve` a target, `run MODEL` answers on this machine alone"
INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(("chat", "talk", "ask", "generate", "infer", "prompt"), "`run MODEL` chats and answers prompts"),
    **dict.fromkeys(("ls", "models", "tags", "bundles"), "`list` shows what is in the cache, `pull --list` all models"),
    **dict.fromkeys(("remove", "delete", "del", "uninstall", "clean", "prune"), "`rm NAME` takes it out of the cache"),
    **dict.fromkeys(("get", "download", "fetch", "clone"), "`pull MODEL` fetches a model"),
    **dict.fromkeys(
        ("convert", "build", "create", "quantize", "quantise", "compile"), "`export MODEL` makes a bundle of a model"
    ),
    **dict.fromkeys(("show", "info", "inspect", "verify", "validate"), "`check BUNDLE` compares a bundle with itself"),
    **dict.fromkeys(("status", "top", "watch", "dashboard"), _WATCHED),
    **dict.fromkeys(("diagnose", "troubleshoot", "test", "ping"), "`doctor` looks for what is wrong"),
    **dict.fromkeys(("train", "finetune", "fine-tune", "train-head"), "`train-draft` trains a draft head"),
    **dict.fromkeys(("benchmark", "perf", "profile"), "`bench` measures on this machine"),
    **dict.fromkeys(("hub", "draft", "drafter"), "`run-draft` starts a hub"),
    **dict.fromkeys(("target", "verifier"), "`run-target BUNDLE` starts a target"),
    **dict.fromkeys(("server", "api", "openai", "web"), "`serve BUNDLE` answers clients of OpenAI's API"),
    **dict.fromkeys(("start", "up", "launch"), _STARTS),
    **dict.fromkeys(("stop", "kill", "down", "restart"), _NO_SERVICE),
    **dict.fromkeys(("update", "upgrade"), "pip installs a newer version, as the README's install lines do"),
    **dict.fromkeys(("push", "publish", "upload", "login"), "nothing is sent anywhere: copy bundles as files"),
    **dict.fromkeys(("settings", "set", "configure"), "`config show` shows options that files and variables set"),
    **dict.fromkeys(("quit", "exit", "bye", "q"), "there is nothing to leave: Ctrl-C ends what runs"),
    **dict.fromkeys(("/bye", "/exit", "/quit"), _IN_CHATS),
    **dict.fromkeys(("/help", "/?", "?", "man", "usage"), "`help` shows the commands, `help COMMAND` one of them"),
}
"""By a word that is no command: what to use."""
_HELP = "--help"
_AS_OPTIONS = {"help": _HELP, "version": "--version"}
_HELPS = frozenset({"help", "-h", _HELP})


class CommandGroup(TyperGroup):
    """The program's commands: another program's word for one is answered with the word here."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """As typer does, and:

        Raises:
            UsageError: there is no such command; the line says what to use.
        """
        word, is_program = args[0], ctx.parent is None
        if word in self.commands or ctx.resilient_parsing:  # the latter: the shell asks what may follow
            return super().resolve_command(ctx, args)
        option = _AS_OPTIONS.get(word.lower())
        if option == _HELP or (option and is_program):
            return self._as_option(ctx, option, args[1:])
        meant = did_you_mean(word.lower(), self.commands) or f": there are {_listed(list(self.commands))}"
        if is_program and word.lower() in INSTEAD:
            meant = f": {INSTEAD[word.lower()]}"
        elif is_program and word in model_and_bundle_names(word):
            meant = f": `run {word}` chats with it and answers prompts"
        raise UsageError(f"there is no command {word!r}{meant} (`{ctx.command_path} --help`)")

    def _as_option(self, ctx: Any, option: str, others: Sequence[str]) -> tuple[str | None, Any, list[str]]:
        """`help run` as `run --help`."""
        if option == _HELP and others and others[0].lower() not in _HELPS:
            return self.resolve_command(ctx, [*others, option])
        # Leaves with what the option shows.
        self.make_context(ctx.info_name, [option], parent=ctx.parent)
        raise typer.Exit


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


CHAT_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("exit", "bye", "q", "leave"), "quit"),
    **dict.fromkeys(("?", "h", "commands"), "help"),
    **dict.fromkeys(("clear", "new", "forget"), "reset"),
    **dict.fromkeys(("again", "regenerate", "regen"), "retry"),
    **dict.fromkeys(("parameters", "params", "show"), "settings"),
    **dict.fromkeys(("figures", "metrics", "timings"), "stats"),
    **dict.fromkeys(("color", "colour", "colors", "colours"), "tint"),
    **dict.fromkeys(("log", "transcript"), "history"),
}
"""By a word after a slash that is no command of a chat: the command that it is taken for."""
_OUTSIDE = "that is for the command line: /quit leaves, then `starsd-edge list` and `help` show what there is"
_ONE_MODEL = "a chat keeps its model and is written nowhere: /quit leaves, `starsd-edge run MODEL` takes another model"
INSTEAD_IN_CHATS: Mapping[str, str] = {
    **dict.fromkeys(("list", "ls", "models", "ps", "pull", "rm", "run", "serve", "export", "check"), _OUTSIDE),
    **dict.fromkeys(("load", "save", "model", "switch"), _ONE_MODEL),
    **dict.fromkeys(("set", "parameter"), "/NAME VALUE sets one, like /temperature 0.7; /settings shows all"),
    **dict.fromkeys(("stop", "cancel"), "Ctrl-C ends an answer, /quit the chat"),
    **dict.fromkeys(("undo", "back"), "/retry answers the last message again, /reset begins anew"),
    **dict.fromkeys(("multiline", "paste", "edit"), 'lines between """ and """ are one message'),
    **dict.fromkeys(("read", "file", "image"), 'a chat reads no files: paste the text between two """'),
}
"""By a word after a slash that no command of a chat is for: what to use."""
_ALONE: Mapping[str, str] = {
    **dict.fromkeys(("exit", "quit", "exit()", "quit()", "exit;", "quit;"), "/quit leaves"),
    **dict.fromkeys(("help", "help()", "?"), "/help lists the commands"),
}
"""By a whole message that is a command of other programs: what is one here."""


def meant_by(message: str) -> str:
    """What to say of a message that is a command of other programs; "" for any other message."""
    word = message.strip().lower()
    return f'{_ALONE[word]}; """{word}""" says it to the model' if word in _ALONE else ""
