"""The mistakes that users make, command by command: one line that says what to do, and an exit code that says whose
the mistake is (2: what was typed or written; 1: what was found there).
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from starsd_jetson import target as target_module
from tests.support.command_line import CommandLine, without_home
from tests.support.letter_bundle import write_bundle
from tests.support.prefix_engine import PrefixEngine
from tests.support.scripted_hub import ScriptedHub

HUB = "ws://127.0.0.1:9"
ASK = "run-target letters --prompt x"


@pytest.fixture
def place(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of a user who has one bundle in the cache, `letters`, and all sorts of files around."""
    (cache / "bundles").mkdir(parents=True)
    letters = write_bundle(cache / "bundles" / "letters")
    place = tmp_path / "here"
    place.mkdir()
    damaged = shutil.copytree(letters, place / "damaged")
    (damaged / "model.onnx.data").write_bytes(b"altered")
    (place / "empty").mkdir()
    (place / "checkpoint").mkdir()
    (place / "checkpoint" / "config.json").write_text("{}")
    (place / "model.gguf").write_bytes(b"GGUF")
    (place / "file").write_text("words")
    (place / "latin1.txt").write_bytes(b"caf\xe9\n")
    (place / "nothing.txt").touch()
    for name, mode, text in (("open", 0o644, "secret"), ("void", 0o600, ""), ("two", 0o600, "one two")):
        (place / f"{name}.token").write_text(text)
        (place / f"{name}.token").chmod(mode)
    monkeypatch.chdir(place)
    monkeypatch.setattr(target_module, "open_engine", lambda *given, **named: PrefixEngine(1, max_context=128))
    return place


@pytest.fixture
def taken() -> Iterator[int]:
    """A port in use."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def line_of(cli: CommandLine, command: str, code: int) -> str:
    """The one line with which a command is refused, which must be its only output and have this exit code."""
    ended = cli(*command.split(" "))
    assert (ended.code, ended.out) == (code, ""), ended
    lines = [line for line in ended.err.splitlines() if not line.startswith(("bench: ", "doctor: "))]  # their steps
    assert len(lines) == 1, ended
    assert lines[0].startswith("error: "), ended
    return lines[0]


BUNDLES = [
    ("lettres", "no bundle named 'lettres': did you mean letters?"),
    ("other", "no bundle named 'other' (here: letters): make one with `starsd-edge export`"),
    ("smollm2-135m-int8", "(here: letters): `starsd-edge export smollm2-135m --weights int8` makes it"),
    ("smollm2-135m-eagle-int8", "`starsd-edge export smollm2-135m --draft-head shipped` makes it"),
    ("./other", "no bundle at other: give the directory that `starsd-edge export` wrote"),
    ("model.gguf", "is a file, and a bundle is a directory: `starsd-edge export model.gguf` makes one"),
    ("./model.gguf", "`starsd-edge export model.gguf` makes one"),
    ("damaged/model.onnx", "is a file of a bundle: give its directory, damaged"),
    ("checkpoint", "`starsd-edge export checkpoint` makes one of this checkpoint"),
    ("hf:ORG/NAME", "`starsd-edge export hf:ORG/NAME` makes one"),
    ("empty", "empty is no bundle: it has no manifest.json"),
    ("damaged", "model.onnx.data is not the file that was exported"),
]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    "command",
    [
        "run-target BUNDLE --prompt x",
        "run-target BUNDLE --chat",
        "run-draft BUNDLE",
        f"doctor BUNDLE --network {HUB}",
        "bench drafts letters --draft BUNDLE",
    ],
)
@pytest.mark.parametrize(("bundle", "says"), BUNDLES)
def test_what_is_no_bundle(cli: CommandLine, command: str, bundle: str, says: str) -> None:
    assert says in line_of(cli, command.replace("run-draft", "run-draft --port 0").replace("BUNDLE", bundle), 1)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("command", ["demo --target BUNDLE --draft letters", "demo --target letters --draft BUNDLE"])
@pytest.mark.parametrize(("bundle", "says"), BUNDLES[:-1])  # hub and targets check the files
def test_what_is_no_bundle_for_the_demo(cli: CommandLine, command: str, bundle: str, says: str) -> None:
    assert says in line_of(cli, command.replace("BUNDLE", bundle), 1)


ADDRESSES = [
    ("http://desk:8317", "write it as ws://desk:8317"),
    ("https://desk:8317", "write it as wss://desk:8317"),
    ("desk:port", "write it like desk, or like ws://192.168.1.20:8317 (without a port it is 8317)"),
    ("http://desk", "write it as ws://desk:8317"),
    ("HTTPS://desk/x", "write it as wss://desk:8317/x"),
    ("ws://desk:0", "(without a port it is 8317)"),
    ("ws://de\u00a0sk", "write it like"),
    ("ws://desk:83170", "write it like desk, or like ws://192.168.1.20:8317"),
    ("http://me:secret@desk:8317", "an address must not hold a secret"),
    ("me:secret@desk", "an address must not hold a secret"),
]
TOKENS = [
    ("missing.token", "cannot be read"),
    ("empty", "cannot be read: Is a directory"),
    ("open.token", "is open to other users of this machine: chmod 600 open.token"),
    ("void.token", "is empty: make a token with"),
    ("two.token", "must hold one token"),
]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    "command",
    [f"{ASK} --hub", "run-target letters --chat --hub", "monitor", "doctor --hub", "doctor letters --network"],
)
@pytest.mark.parametrize(("address", "says"), ADDRESSES)
def test_what_is_no_address(cli: CommandLine, command: str, address: str, says: str) -> None:
    line = line_of(cli, f"{command} {address}", 2)
    assert says in line
    assert "secret@" not in line


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    "command",
    [
        f"{ASK} --hub {HUB}",
        f"run-target letters --chat --hub {HUB}",
        "run-draft --port 0",
        f"monitor {HUB}",
        f"doctor letters --network {HUB}",
    ],
)
@pytest.mark.parametrize(("file", "says"), TOKENS)
def test_what_is_no_token_file(cli: CommandLine, command: str, file: str, says: str) -> None:
    assert says in line_of(cli, f"{command} --token-file {file}", 2)


PROMPTS = [
    ("missing.txt", "cannot read the prompts in missing.txt: No such file"),
    ("empty", "cannot read the prompts in empty: Is a directory"),
    ("latin1.txt", "latin1.txt is not UTF-8 text (byte 3): convert it"),
    ("nothing.txt", "there is no prompt in nothing.txt: write one per line"),
]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("command", ["run-target letters", "bench decode letters"])
@pytest.mark.parametrize(("file", "says"), PROMPTS)
def test_what_is_no_file_of_prompts(cli: CommandLine, command: str, file: str, says: str) -> None:
    assert says in line_of(cli, f"{command} --prompts {file}", 2)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            f"{ASK} --hub {HUB} --require-hub",
            f"the hub {HUB} cannot be reached (Connection refused); without --require",
        ),
        (f"{ASK} --hub ws://no-such-host.invalid:8317 --require-hub", "no-such-host.invalid"),
        (f"monitor --once {HUB}", f"no hub: Connection refused ({HUB}): start one with `starsd-edge run-draft`"),
        (f"monitor --once --json {HUB}", HUB),
        (f"doctor letters --network {HUB}", f"the hub {HUB} cannot be reached (Connection refused)"),
    ],
)
def test_a_hub_that_is_away(cli: CommandLine, command: str, says: str) -> None:
    assert says in line_of(cli, command, 1)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("command", [f"{ASK} --require-hub --hub", "monitor --once", "doctor letters --network"])
@pytest.mark.parametrize(
    ("status", "says"),
    [(401, "give its token with --token-file"), (421, "without one it answers to a loopback address")],
)
def test_a_hub_that_does_not_let_anybody_in(cli: CommandLine, command: str, status: int, says: str) -> None:
    with ScriptedHub(status=status) as hub:
        line = line_of(cli, f"{command} {hub.url}", 1)
    assert says in line
    assert hub.url in line
    assert "decoding goes on" not in line


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("run-tagret letters", "did you mean run-target"),
        ("bench decod letters", "did you mean decode?"),
        ("config shwo", "did you mean show?"),
        ("config show run-targt", "did you mean run-target"),
        ("config show nonsense", "there are run, pull, list, rm, ps, export,"),
        ("run-target letters --promt x", "--prompt"),
        ("run-target letters --chatt", "--chat"),
        ("run-draft --prot 8000", "--port"),
        ("export letters --wieghts int8", "--weights"),
        ("train-draft letters --outptu x", "--output"),
        ("bench drafts letters --darft x", "--draft"),
        ("pull --lsit", "--list"),
        ("monitor --replya x", "--replay"),
        ("demo --tagrets 2", "--targets"),
        ("bench decode letters --promts x", "--prompts"),
        ("doctor --netwrok x", "--network"),
        ("config show --jsno", "--json"),
        ("--confg x config path", "--config"),
    ],
)
def test_a_slip_of_the_pen(cli: CommandLine, command: str, says: str) -> None:
    assert says in line_of(cli, command, 2)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("run-target letters", "no prompt: give --prompt TEXT"),
        ("run-target letters Why?", "Got unexpected extra argument"),
        ("run-target", "Missing argument"),
        ("export", "Missing argument"),
        ("pull", "`starsd-edge pull --list` shows the names"),
        (f"{ASK} --max-tokens many", "--max-tokens"),
        (f"{ASK} --max-tokens 0", "greater than or equal to 1"),
        (f"{ASK} --context 4096", "is more than the 128 of letters"),
        (f"{ASK} --temperature -1", "temperature must be 0"),
        (f"{ASK} --logit-bias x", "--logit-bias takes ID=VALUE"),
        (f"{ASK} --log-level loud", "'--log-level': 'loud' is not one of"),
        (f"{ASK} --device gpu", "no device 'gpu': --device is cpu, cuda or jetson"),
        (f"{ASK} --chat", "leave out --prompt and --prompts"),
        ("run-target letters --chat --raw", "leave out --raw"),
        ("run-target letters --chat --json", "leave out --json"),
        ("run-target letters --chat --log-format json", "give --log-format text"),
        ("run-target letters --chat", "has no chat template: leave out --chat"),
        (f"{ASK} --json --stream-json", "leave out one of them"),
        (f"{ASK} --require-hub", "need --hub"),
        (f"{ASK} --hub {HUB} --require-hub --no-speculation", "leave out --require-hub"),
        ("run-draft --host 0.0.0.0", "give --token-file FILE, or listen on 127.0.0.1"),
        ("run-draft --host no-such-host.invalid", "is not known"),
        ("run-draft --port 70000", "70000 is no port"),
        ("run-draft --port {taken}", "port {taken} on 127.0.0.1 is in use"),
        ("run-draft letters --drafter ngram", "leave the BUNDLE out"),
        ("run-draft --drafter causal-lm", "starsd-edge run-draft BUNDLE"),
        ("run-draft --drafter eagle", "starsd-edge run-draft BUNDLE"),
        ("run-draft --drafter magic", "'magic' is not one of"),
        ("run-draft --isolation alone", "'alone' is not one of 'shared', 'dedicated'"),
        ("run-draft --port-range 9000-9010", "is for --isolation dedicated"),
        ("run-draft --isolation dedicated --port-range 9000", "write --port-range like 9000-9099"),
        ("run-draft --isolation dedicated --port-range 9010-9000", "the lower one first"),
        ("run-draft --max-sessions 0", "mend --max-sessions"),
        ("pull no-such-model", "known: smollm2-135m"),
        ("pull ./missing.gguf", "no file or directory there"),
        ("pull hf:NAME", "write hf:ORG/NAME"),
        ("monitor --replay missing.jsonl", "cannot replay missing.jsonl"),
        ("monitor --replay file", "line 1 of file: not a snapshot"),
        ("monitor --replay file --record other", "leave out --record"),
        (f"monitor --once --record file {HUB}", "file is there already"),
        ("demo --targets 7", "less than or equal to 6"),
        ("bench decode letters --drafter draft", "--draft BUNDLE"),
        ("bench drafts letters", "Missing option '--draft'"),
        ("train-draft smollm2-135m", "Missing option '--output'"),
        ("bench decode letters --json missing/figures.json", "there is no directory missing"),
        ("bench decode letters --new-tokens 4000", "lower one of them"),
        ("doctor --port 70000", "less than or equal to 65535"),
        ("doctor --acceptance 0.5", "need --network"),
        (f"doctor --network {HUB} --hub {HUB}", "leave out --hub"),
        (f"doctor one two --network {HUB}", "name one"),
    ],
)
def test_options_that_cannot_be(cli: CommandLine, taken: int, command: str, says: str) -> None:
    assert says.format(taken=taken) in line_of(cli, command.format(taken=taken), 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[run-target]\nhubb = 'ws://desk:8317'\n", "[run-target] has no key 'hubb': did you mean hub?"),
        ("[run-targt]\n", "no command has the table [run-targt]: did you mean [run-target]"),
        ("hub = 'ws://desk:8317'\n", "hub belongs into the table of a command: [run] or [run-target]"),
        ("[run-target]\nmax-tokens = 'many'\n", 'max-tokens must be a whole number, not "many"'),
        ("[run-target]\nmax-tokens = 0\n", "greater than or equal to 1 (set in options.toml, [run-target])"),
        ("[run-target]\nhub = 'http://desk:8317'\n", "write it as ws://desk:8317 (options also come from options.toml"),
        ("run-target\n", "options.toml is not TOML"),
    ],
)
def test_a_file_of_options_that_cannot_be(cli: CommandLine, place: Path, text: str, says: str) -> None:
    (place / "options.toml").write_text(text)
    assert says in line_of(cli, f"--config options.toml {ASK}", 2)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("file", "says"),
    [("missing.toml", "No such file"), ("empty", "Is a directory"), ("latin1.txt", "is not UTF-8 text")],
)
def test_what_is_no_file_of_options(cli: CommandLine, file: str, says: str) -> None:
    assert says in line_of(cli, f"--config {file} config show", 2)


@pytest.mark.usefixtures("place")
def test_a_prompt_that_is_too_long_is_no_wrong_option(cli: CommandLine) -> None:
    """A service that ends with 2 is not started again."""
    assert "128" in line_of(cli, f"run-target letters --prompt {'a' * 200}", 1)


def test_a_wrong_table_of_a_group_stops_its_commands_and_no_others(cli: CommandLine, place: Path) -> None:
    (place / "options.toml").write_text("[bench.decod]\n")
    says = "no command has the table [bench.decod]: did you mean [bench.decode]?"
    assert says in line_of(cli, "--config options.toml bench decode letters", 2)
    assert cli(*f"--config options.toml {ASK}".split()).code != 2


def test_a_bundle_given_by_path_needs_no_home_directory(
    cli: CommandLine, place: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = cache / "bundles/letters"
    without_home(monkeypatch)
    for command in ("doctor", "check", "plan"):
        ended = cli(command, bundle)
        assert "no home directory is known: set" not in ended.out + ended.err, ended
        assert "fault of starsd-edge" not in ended.err, ended
        assert ended.out, ended
    (place / "keys.toml").write_text('[kitchen]\ntoken-file = "~nobody-of-this-name/token"\n')
    assert "~nobody-of-this-name/token" in cli.refused("run-draft", "--keys", place / "keys.toml", "--port", 0)
    if find_spec("onnx_ir") is not None:
        assert "no model named '~nobody-of-this-name/x'" in cli.refused("export", "~nobody-of-this-name/x")
