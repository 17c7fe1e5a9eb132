"""`doctor` without --network: the machine, the cache, every bundle, the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from starsd_edge.bundles.cache import CACHE_VARIABLE, bundle_names, bundles_dir, known_cache
from starsd_edge.cli.doctor.bundle import GPU_DEVICES, Here, check_bundle
from starsd_edge.cli.doctor.options import DoctorOptions
from starsd_edge.device.facts import read_device
from starsd_edge.device.host import Host
from starsd_edge.discovery import AUTO
from starsd_edge.doctor.bundle import engine_hosts
from starsd_edge.doctor.device import check_device
from starsd_edge.doctor.findings import Finding, Findings, failure, not_run, note, ok
from starsd_edge.doctor.gather import gather_machine, gather_software
from starsd_edge.doctor.machine import check_cache, check_machine, check_welcome, read_cache
from starsd_edge.doctor.software import check_gpu_engines, check_software
from starsd_edge.errors import StarsdError, UsageError
from starsd_edge.key_file import read_token
from starsd_edge.protocol.messages import DEFAULT_PORT, WIRE_VERSION, Hello

if TYPE_CHECKING:
    from starsd_jetson.target import Target

Progress = Callable[[str], None]
NAME = "doctor"
"""Name of this target in the hub's monitor."""
CONNECT_S = 10.0
_OWN_FILES = 64
"""Number of files that a hub has open beside its sockets."""


def check_all(options: DoctorOptions, progress: Progress) -> Findings:
    """Run every check.

    Raises:
        UsageError: the hub's address is none.
    """
    if options.hub and options.hub != AUTO:
        from starsd_jetson.api import hub_address

        hub_address(options.hub, None)  # a wrong one is known before anything is looked at
    names = [*options.bundles] or bundle_names()
    progress("the machine")
    host = Host()
    device = read_device(host)
    software = gather_software(device, host)
    libraries = {"tensorrt": software.tensorrt, "tensorrt_rtx": software.tensorrt_rtx}
    here = Here(device, software, engine_hosts(device, libraries))
    return Findings([*_check_machine(options, here), *_check_bundles(names, options, here, progress)])


def _check_machine(options: DoctorOptions, here: Here) -> Iterator[Finding]:
    from starsd_server.settings import DoorSettings

    yield from check_software(here.software)
    yield from check_device(here.device)
    cache = known_cache()
    yield from check_machine(gather_machine(cache or Path.cwd(), DoorSettings().max_sockets + _OWN_FILES))
    yield _check_port(options.port)
    try:
        if cache is None:
            yield note("cache", "no home directory is known", f"set {CACHE_VARIABLE} to a directory")
        else:
            yield from check_cache(read_cache(cache))
    except OSError as error:
        yield failure("cache", f"{error.filename} cannot be read: {error.strerror}", "check its owner")
    if options.token_file is not None:
        yield _check_token(options.token_file)


def _check_port(port: int | None) -> Finding:
    """One that was asked for must be free, or a hub's that runs; the usual one may be another program's."""
    from starsd_edge.listening import bind
    from starsd_edge.telemetry.hub_opening import hub_listens

    wanted = DEFAULT_PORT if port is None else port
    if hub_listens("127.0.0.1", wanted):
        return ok("port", f"a hub listens on {wanted} (`starsd-edge monitor` shows it)")
    try:
        with bind("127.0.0.1", wanted, has_token=True):
            return ok("port", f"a hub can listen on {wanted}")
    except UsageError as error:
        return (note if port is None else failure)("port", str(error))


def _check_token(path: Path) -> Finding:
    try:
        read_token(path)
    except UsageError as error:
        return failure("token file", str(error))
    return ok("token file", f"{path} holds a token and only its owner can read it")


def _check_bundles(names: Sequence[str], options: DoctorOptions, here: Here, progress: Progress) -> Iterator[Finding]:
    """Each of them, and the hub for each that runs: its engine is gone before the next bundle's comes."""
    if not names:
        remedy = "starsd-edge pull smollm2-135m && starsd-edge export smollm2-135m"
        if find_spec("torch") is None:
            remedy = f"export on a machine that has the extra for it ({remedy}), and copy the bundle here"
        yield note("bundle", "none" if known_cache() is None else f"none in {bundles_dir()}", remedy)
    ran: set[str] = set()
    asked = False
    for name in names:
        progress(f"the bundle {name}")
        checked = yield from check_bundle(name, options.threads, here)
        ran.update(checked.devices)
        if checked.target is not None and options.hub:
            yield from _check_hub(options, checked.target)
            asked = True
    yield from check_gpu_engines(here.software, [device for device in GPU_DEVICES if device not in ran])
    if not options.hub:
        yield not_run("hub", "no hub was named", "--hub URL, with --token-file FILE where it has one")
    elif not asked:
        yield from _check_hub(options, None)


def _check_hub(options: DoctorOptions, target: Target | None) -> Iterator[Finding]:
    """As a target with this bundle meets it, or one with none."""
    from starsd_jetson.api import hub_address, link_to

    assert options.hub is not None  # noqa: S101 (asked before)
    try:
        address = hub_address(options.hub, options.token_file)
        hello = _nobody() if target is None else hello_of(target)
        with link_to(address, hello) as link:
            link.wait_for_hub(CONNECT_S)
            welcome = link.welcome
    except StarsdError as error:
        yield failure("hub", str(error))
        return
    assert welcome is not None  # noqa: S101 (it let us in)
    bundle = None if target is None else target.bundle
    name = None if bundle is None else bundle.path.name
    yield from check_welcome(options.hub, name, None if bundle is None else bundle.manifest.fingerprints, welcome)


def hello_of(target: Target) -> Hello:
    """As `run-target` without further options introduces itself."""
    from starsd_jetson.draft_size import draft_shape

    return target.hello(NAME, draft_shape(target.engine.spec, None, None, None), target.context(None))


def _nobody() -> Hello:
    """A target without a model: it shows whether the hub lets this machine in."""
    return Hello([WIRE_VERSION], NAME, 2, "none", "none", "none", "none", 0, [], 1, 0, 1)
