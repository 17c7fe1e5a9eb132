"""What a hub knows of itself and of its targets, as data.

One form for three readers: `/status` shows it as JSON, `/metrics` for Prometheus, the monitor's feed in snapshots.
Everything that grows is a sum since the start, so a reader that misses some of it still gets rates right. Fields are
only ever added, with a default. The ranges bound what a reader takes from a hub that it does not know.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

Total = Annotated[int, Meta(ge=0, lt=1 << 62)]
Measure = Annotated[float, Meta(ge=0, le=1e12)]
Label = Annotated[str, Meta(max_length=1024)]
Levels = Annotated[list[Total], Meta(max_length=1024)]


@dataclass(frozen=True)
class TimeUse:
    """Seconds since the drafting thread began.

    Attributes:
        busy_s: seconds inside a drafter.
        idle_s: seconds without work.
        lag_s: seconds in which work waited and no drafter ran.
    """

    busy_s: Measure = 0.0
    idle_s: Measure = 0.0
    lag_s: Measure = 0.0

    @property
    def total_s(self) -> float:
        """Seconds of all three states together."""
        return self.busy_s + self.idle_s + self.lag_s


@dataclass(frozen=True)
class QueueDepth:
    """How much waits.

    Attributes:
        requests: draft requests that wait.
        rows: true rows not yet fed to a drafter.
        superseded: requests that were never drafted because a newer one of the same session came, since the start.
        dropped: requests that were dropped with their session or its connection, since the start.
    """

    requests: Total = 0
    rows: Total = 0
    superseded: Total = 0
    dropped: Total = 0


@dataclass(frozen=True)
class ServiceFacts:
    """S(b, shape) of a drafter as measured over `passes`: the sum of these parts, in milliseconds.

    Attributes:
        fixed_ms: cost of each pass.
        session_ms: cost of each session in it.
        level_ms: cost of each level of the deepest tree.
        node_ms: cost of each node of all trees together.
        row_ms: cost of each true row where many are fed at once; 0 before any were.
    """

    passes: Total = 0
    fixed_ms: Measure = 0.0
    session_ms: Measure = 0.0
    level_ms: Measure = 0.0
    node_ms: Measure = 0.0
    row_ms: Measure = 0.0


@dataclass(frozen=True)
class BatchFacts:
    """How many sessions are drafted for in one pass.

    Attributes:
        last: sessions in the last pass.
        most: the hub's limit of sessions in a pass.
        sizes: number of passes for one session, for two, and so on.
    """

    last: Total = 0
    most: Total = 0
    sizes: Levels = field(default_factory=list)


@dataclass(frozen=True)
class DrafterFacts:
    """Facts of one drafter.

    Attributes:
        sessions: sessions open now.
        passes: runs in which it drafted, for one session or several at once.
        failures: sessions lost to an error of the drafter.
        failures_in_a_row: sessions lost since it last did its work.
        refusals: sessions that it did not serve although it works (it is full, or cannot take their rows).
        last_error: class name of the last error.
        broken: why it drafts for nobody; "" where it can.
    """

    kind: Label
    fingerprint: Label = ""
    warm: bool = False
    failing: bool = False
    sessions: Total = 0
    drafts: Total = 0
    draft_tokens: Total = 0
    rows: Total = 0
    failures: Total = 0
    failures_in_a_row: Total = 0
    refusals: Total = 0
    last_error: Label = ""
    passes: Total = 0
    broken: Label = ""
    service: ServiceFacts = field(default_factory=ServiceFacts)


@dataclass(frozen=True)
class TargetReport:
    """What a target last said of itself: the fields of a REPORT."""

    rounds: Total = 0
    hub_rounds: Total = 0
    local_rounds: Total = 0
    tokens: Total = 0
    draft_us: Total = 0
    plain_us: Total = 0
    verify_us: Total = 0
    wait_us: Total = 0
    why_off: Label = ""
    pass_rows: Levels | None = None
    pass_us: Levels | None = None
    clamped_rows: Total = 0


@dataclass(frozen=True)
class Judgement:
    """Acceptance of the drafts, as the hub sees it from the rows that follow; see `DraftRecord`.

    Attributes:
        drafts: number of trees sent.
        nodes: number of nodes in these trees.
        judged: trees whose continuation is known, empty ones too.
        accepted: nodes on accepted paths.
        level_trials: by level, number of trees that offered a node of this level below an accepted path.
        level_hits: by level, number of trees in which a node of this level was accepted.
    """

    drafts: Total = 0
    nodes: Total = 0
    judged: Total = 0
    accepted: Total = 0
    level_trials: Levels = field(default_factory=list)
    level_hits: Levels = field(default_factory=list)


@dataclass(frozen=True)
class ShapeFacts:
    """How large the drafts of a target are, and why; of its session that asked last.

    Attributes:
        why: the reason, one of those in `starsd_edge.protocol.codes`; "" where the hub chooses no shapes.
        nodes, depth, branching: at most; 0 while it is what the target asks for.
        gain: expected speed as a multiple of plain decoding; 0 while unknown.
        survival: by level, acceptance rate of the likeliest draft token where the path has come so far.
    """

    why: Label = ""
    nodes: Total = 0
    depth: Total = 0
    branching: Total = 0
    gain: Measure = 0.0
    survival: Annotated[list[Measure], Meta(max_length=1024)] = field(default_factory=list)


@dataclass(frozen=True)
class LatencyFacts:
    """The rounds of a target as the hub observes them, in milliseconds: smoothed time and mean deviation; None while
    not known.

    Attributes:
        return_ms: Z, from sending a draft to receiving the next request, on the hub's clock.
        link_ms: part of Z on the network, both ways; only for targets that tell what passed at their end.
        verify_ms: the target's forward pass, as it reports it.
        degraded: whether the path is much slower than usual.
        usual_ms: the usual time of the path.
        changes: number of sudden changes of the path.
    """

    return_ms: Measure | None = None
    return_deviation_ms: Measure = 0.0
    link_ms: Measure | None = None
    link_deviation_ms: Measure = 0.0
    verify_ms: Measure | None = None
    verify_deviation_ms: Measure = 0.0
    degraded: bool = False
    usual_ms: Measure = 0.0
    changes: Total = 0


@dataclass(frozen=True)
class TargetFacts:
    """One connected target.

    Attributes:
        target: the name that the target gave itself, "" before HELLO.
        drafter: the drafter that it was offered, "" before HELLO.
        rtt_ms: smoothed round-trip time of the connection as the kernel measures it; None where it does not tell.
        min_rtt_ms: least recent round-trip time, as the kernel keeps it.
        number: number of the connection, unique while the hub runs.
        queue_ms_p50: median time of its last drafts in `Q_in`.
        report: its last report; None from a target that has sent none.
        port: the hub's port that it is connected to; 0 where that is not known.
        latency: durations of its rounds.
        shape: shape of its drafts.
    """

    target: Label
    address: Label = ""
    drafter: Label = ""
    connected_s: Measure = 0.0
    sessions: Total = 0
    rtt_ms: Measure | None = None
    min_rtt_ms: Measure | None = None
    frames_in: Total = 0
    frames_out: Total = 0
    bytes_in: Total = 0
    bytes_out: Total = 0
    number: Total = 0
    queue_ms_p50: Measure = 0.0
    queue_ms_p99: Measure = 0.0
    drafted: Judgement = field(default_factory=Judgement)
    report: TargetReport | None = None
    port: Total = 0
    latency: LatencyFacts = field(default_factory=LatencyFacts)
    shape: ShapeFacts = field(default_factory=ShapeFacts)


@dataclass(frozen=True)
class RecentDrafts:
    """Times of the last drafts in `Q_in` and in the drafter (S), in milliseconds."""

    drafts: Total = 0
    queue_ms_p50: Measure = 0.0
    queue_ms_p99: Measure = 0.0
    service_ms_p50: Measure = 0.0
    service_ms_p99: Measure = 0.0


@dataclass(frozen=True)
class HubFacts:
    """One hub.

    Attributes:
        ready: every drafter is warm and works.
        sessions: held, those of `sessions_away` included.
        sessions_away: whose target has lost its connection and may come back.
        time: use of the drafting thread's time, since the start.
        unused_s: seconds of its busy time that went into drafts whose target had left, and into rows of sessions that
            were gone or away by then.
        busy_ratio: share of busy time of the drafting thread over the last seconds.
        dropped: frames and drafts not acted on, by reason.
        auth_failures: connections with no token or a wrong one.
        turned_away: connections refused because the hub was full, or because they came to a target's own port without a
            good ticket.
        drafted: acceptance of all drafts, those for targets that have left included.
        own_ports: ports that it may hand out to targets; 0 where all of them share one.
        own_ports_taken: ports of these that are handed out.
        policy: name of the policy by which requests are ordered.
        policy_in_use: the rule followed now, which differs where the policy changes it with the load.
        bundle_bytes: of files of bundles, handed to targets.
    """

    hub_id: Label = ""
    version: Label = ""
    uptime_s: Measure = 0.0
    ready: bool = False
    drafters: Annotated[list[DrafterFacts], Meta(max_length=64)] = field(default_factory=list)
    targets: Annotated[list[TargetFacts], Meta(max_length=4096)] = field(default_factory=list)
    sessions: Total = 0
    sessions_away: Total = 0
    queue: QueueDepth = field(default_factory=QueueDepth)
    time: TimeUse = field(default_factory=TimeUse)
    busy_ratio: Measure = 0.0
    draft_times: RecentDrafts = field(default_factory=RecentDrafts)
    bytes_up: Total = 0
    bytes_down: Total = 0
    dropped: dict[Label, Total] = field(default_factory=dict)
    auth_failures: Total = 0
    turned_away: Total = 0
    drafted: Judgement = field(default_factory=Judgement)
    own_ports: Total = 0
    own_ports_taken: Total = 0
    policy: Label = ""
    policy_in_use: Label = ""
    batches: BatchFacts = field(default_factory=BatchFacts)
    unused_s: Measure = 0.0
    bundle_bytes: Total = 0
