"""Where a stranger looks: a question, the file that its words lead to, and the name that answers it there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.test_architecture import LAYERS

ROOT = Path(__file__).parents[1]
GUESSES = (
    ("what the page's charts show of the last hours: load history", "actors/load_history.py", "LoadHistory"),
    ("how a model's turn is read: reader", "api/text/turn/reader.py", "TurnReader"),
    ("the grammar of a turn", "api/text/turn/grammar.py", "turn_grammar"),
    ("which endpoint holds an event loop", "runtime/node/stall_watch.py", "StallWatch"),
    ("what mypy knows of an endpoint", "runtime/actor/typed_endpoint.py", "TypedCall"),
    ("spans of requests for a collector: OTLP", "api/http/otlp.py", "OtlpSpans"),
    ("where a higher tier enters at hidden states of a lower one", "policies/sweep/hidden_entries.py", "HiddenEntries"),
    ("who starts next among tenants: fair share", "policies/sweep/fair_share.py", "FairShare"),
    ("how much KV an account holds", "policies/memory/accounts.py", "PageAccounts"),
    ("whose account a request is on", "policies/requests/account.py", "account_of"),
    ("which application goes on which worker: placement", "policies/cluster/placement.py", "place_by_locality"),
    ("what a worker reports and how large it is: worker size", "policies/cluster/worker_size.py", "WorkerSizes"),
    ("who starts workers on other machines: launcher", "runtime/cluster/launcher.py", "Launcher"),
    ("workers over ssh or srun: command launcher", "runtime/cluster/command_launcher.py", "CommandLauncher"),
    ("workers on Ray: ray launcher", "runtime/cluster/ray_launcher.py", "RayLauncher"),
    ("who holds the pipes of launched workers when the head dies: holder", "runtime/cluster/holder.py", "Holder"),
    ("the command that starts a worker: launching", "policies/cluster/launching.py", "LaunchTemplate"),
    ("where a worker finds the files of a model: model folders", "actors/worker/model_folders.py", "ModelFolders"),
    ("who may send how much: rate limit", "policies/requests/rate_limit.py", "Quotas"),
    ("whether the server takes one more request: admission limit", "policies/requests/admission_limit.py", "AdmissionLimit"),
    ("how long a 503 client should wait: retry after", "policies/requests/retry_after.py", "forecast"),
    ("where requests can go: routing table", "policies/requests/routing_table.py", "RoutingTable"),
    ("whose a request is: request ownership", "policies/requests/request_ownership.py", "Viewer"),
    ("who asks predictors where a request should go: dispatcher", "actors/dispatcher/actor.py", "Dispatcher"),
    ("requests that a gateway is asking about", "policies/requests/book/dispatch_queries.py", "DispatchQueries"),
    ("what a dispatcher decided, and what came of it: decision", "policies/requests/book/decision.py", "Decision"),
    ("which drafts a request gets: choice", "policies/drafts/choice.py", "draft_options"),
    ("why a request has no drafts", "policies/requests/book/drafts.py", "draft_view"),
    ("which model can draft for another: draft model", "policies/drafts/draft_model.py", "draft_model_fault"),
    ("the rows of draft models: draft rows", "policies/sweep/draft_rows.py", "DraftRows"),
    ("how a draft model drafts: model drafting", "policies/sweep/model_drafting.py", "ModelDrafting"),
    ("which blocks may stand in for others: equivalence", "policies/adaptive/equivalence.py", "candidate_pairs"),
    ("joining models of other widths: stitches", "policies/adaptive/stitches.py", "stitch_points"),
    ("two models with the same tokens: token table", "gpu/weights/token_table.py", "token_table"),
    ("how long an answer will be: lengths", "policies/prediction/lengths.py", "LengthEstimator"),
    ("who learns lengths: tagger", "actors/tagger/actor.py", "Tagger"),
    (
        "a long request waits until idle models are unloaded: capacity",
        "policies/requests/book/capacity_waits.py",
        "CapacityWaits",
    ),
    ("a worker gives a request back for want of room: turned away", "policies/requests/turned_away.py", "turned_away"),
    ("requests that kill their worker", "policies/requests/poison.py", "Quarantine"),
    ("who waits before whom", "policies/requests/queue.py", "WaitingQueue"),
    ("why a request is refused", "policies/requests/refusal.py", "Refusal"),
    ("how long a request may take: request timeout", "policies/requests/request_timeout.py", "RequestTimeout"),
    ("whose batch runs next: turns", "policies/offline/batch_turns.py", "next_to_run"),
    ("whether a worker may be drained: draining", "policies/cluster/draining.py", "needed_by"),
    ("whether a sequence can ever be served", "policies/requests/admission.py", "admit"),
    ("service tiers and priorities", "policies/requests/urgency.py", "urgency"),
    ("when something that died is started again: restart policy", "policies/cluster/restart_policy.py", "Backoff"),
    ("what goes first on a link", "policies/cluster/chunk_order.py", "ChunkOrder"),
    ("when two pages of KV have one identity", "policies/model/lineage.py", "lineages"),
    ("where chains are cut into blocks", "policies/model/partition.py", "cut_blocks"),
    ("how dense a request is: density", "policies/offline/density.py", "Costs"),
    ("which prompts of a batch share a prefix: prefix tree", "policies/offline/prefix_tree.py", "PrefixTree"),
    ("how long answers of a batch will be: estimates", "policies/offline/estimates.py", "Estimates"),
    ("what a batch is before it runs: batch plan", "api/commands/batch_plan.py", "BatchPlan"),
    ("in which order a batch runs: order", "policies/offline/order.py", "density_order"),
    ("how a batch is cut for several workers: parts", "policies/offline/parts.py", "cut"),
    ("which worker takes what of an offline job: feed", "policies/offline/feed.py", "OfflineFeed"),
    ("who drives the feed of an offline job: driver", "actors/batches/driver.py", "FeedDriver"),
    ("which request of a batch starts next: scanner", "policies/offline/scanner.py", "DualScanner"),
    ("how long a step takes where compute and reading overlap: step time", "policies/offline/step_time.py", "StepTime"),
    ("how many tokens a step of a batch has: step tokens", "policies/offline/step_tokens.py", "StepTokens"),
    ("in which order other engines run a batch: baselines", "policies/offline/baselines.py", "depth_first"),
    ("an offline batch under virtual time: offline job", "simulator/offline_job.py", "OfflineJob"),
    ("what a token costs", "policies/plan/coefficients.py", "Coefficients"),
    ("what the device does next", "policies/plan/sweep_plan.py", "SweepPlan"),
    ("how long loading may hold up running requests: time slice", "policies/plan/time_slice.py", "time_slice"),
    ("whether parameters can be dropped now: drop order", "policies/overload/drop_order.py", "undroppable"),
    ("who holds a page of KV", "policies/memory/pages.py", "PageTable"),
    ("what keeps results of batches: store", "api/batches/store.py", "BatchStore"),
    ("a line of a batch", "api/batches/lines.py", "parse_line"),
    ("which batch runs when: state", "actors/batches/state.py", "BatchesState"),
    ("who is preempted: preemption", "policies/sweep/preemption.py", "choose_victim"),
    ("leases of pages between workers", "policies/sweep/leases.py", "arrive"),
    ("what a worker accepts and emits: events and effects", "policies/sweep/events.py", "TokensEmitted"),
    ("simulating a cluster", "simulator/simulation.py", "ClusterSimulation"),
    ("which simulated drafts stand", "simulator/drafts.py", "DraftOutcomes"),
    ("replaying a worker from its event log", "policies/sweep/event_log.py", "Replayer"),
    ("what the gateway knows of one request", "policies/requests/book/record.py", "RequestRecord"),
    ("the stages of a request's life", "policies/requests/book/lifecycle.py", "LifeStage"),
    ("which requests claim another route", "policies/requests/book/route_claims.py", "RouteClaims"),
    ("lost and repeated reports of a worker", "policies/cluster/report_sequence.py", "ReportSequence"),
    ("which models the gateway serves", "policies/requests/book/catalogue.py", "Catalogue"),
    ("what api/ may ask of the gateway", "actors/gateway/port.py", "GatewayPort"),
    ("all settings", "actors/settings/settings.py", "Settings"),
    ("which component loads next", "policies/control/residency.py", "next_load"),
    ("HTTP status and code of an error", "api/errors.py", "in_words"),
    ("may this key use this model", "api/http/auth.py", "may_use"),
    ("what is left of a tenant's limits", "api/http/limits.py", "rate_headers"),
    ("which fields a body may have", "api/openai/fields.py", "Options"),
    ("all endpoints", "api/app/routes.py", "ENDPOINTS"),
    ("starting and stopping an actor: lifecycle", "runtime/node/lifecycle.py", "LocalActors"),
    ("who is notified that an actor died: monitors", "runtime/node/monitors.py", "Monitors"),
    ("actors that die together: links", "runtime/node/links.py", "Links"),
    ("what a heartbeat says", "runtime/node/heartbeat.py", "Heartbeat"),
    ("names in the cluster: registry", "runtime/node/registry.py", "Registry"),
    ("who is in the cluster: head", "runtime/cluster/cluster.py", "ClusterHead"),
    ("a folder of models that share their tensors: zoo", "zoo/zoo.py", "Zoo"),
    ("opening a checkpoint folder or an application of a zoo", "zoo/source.py", "open_source"),
    ("how a connection begins: handshake", "transport/handshake.py", "Greeting"),
    ("what makes two blocks equal: hash of a block's content", "gpu/weights/identity.py", "component_id"),
    ("which replica a request goes to", "policies/requests/dispatch.py", "dispatch"),
    ("when is it noticed that a worker's process has died", "runtime/cluster/process_watch.py", "ProcessWatch"),
    ("what becomes of a request whose worker died: settling", "policies/requests/book/settling.py", "fail_over"),
    (
        "why no token is repeated after a failover: tokens a request already has are dropped",
        "policies/requests/book/record.py",
        "extend",
    ),
    ("where a LoRA delta is added to a product", "gpu/cpu/reference/deltas.py", "Products"),
    ("which page of KV is evicted first: the oldest", "policies/memory/eviction.py", "evict_oldest"),
    ("how the next token is drawn: temperature, top p, sampling", "gpu/sampling/sampler.py", "sample"),
    ("where a stop string is cut off a streamed text", "api/text/stops.py", "StopScanner"),
    ("what a body of chat completions may contain: parsing it", "api/openai/bodies.py", "parse_chat"),
    ("how a conversation becomes a prompt: chat template", "api/text/chat_template.py", "ChatTemplate"),
    ("whose API key a request carries", "api/http/auth.py", "Keys"),
    ("how lower tiers are trained: knowledge precipitation", "zoo/family/training.py", "Training"),
    ("how good the tiers of a family are: grading", "zoo/family/grading.py", "grade"),
    ("when a request of auto goes up: confidence", "policies/model/confidence.py", "goes_up"),
    ("what zoo gc removes", "zoo/remove.py", "gc"),
    ("where a worker gets a tensor that no folder has: by hash", "actors/worker/component_sources.py", "ComponentSources"),
    ("which worker gives parameters to which: sources", "policies/cluster/parameter_sources.py", "ParameterSources"),
    ("what a worker keeps of what came from elsewhere: store", "zoo/store.py", "Store"),
    ("how a zoo is read over http: origin", "zoo/origin.py", "Origin"),
    ("when replicas drop parameters in a burst", "policies/overload/coordinator.py", "MemoryCoordinator"),
    ("which batches continue after a crash", "api/batches/store.py", "open_batches"),
    ("where the folder of adapters is searched for a name", "actors/further_applications.py", "adapter_named"),
    ("how hidden states get from one pipeline stage to the next worker", "actors/worker/outbox.py", "Outbox"),
    ("what the executor obeys plans over: device", "gpu/device.py", "Device"),
    ("what computes if there is no gcc and the native kernels do not load", "gpu/select.py", "open_backend"),
    ("where the seconds of a request went by phase: explain", "api/commands/explain.py", "phases"),
    ("how much memory sharing saves", "actors/controller/view.py", "memory_saved"),
    ("who wants a component on a worker: claims", "policies/control/holdings.py", "claims_on"),
    ("which grammar is compiled next, and whose: compile queue", "policies/sweep/compile_queue.py", "CompileQueue"),
    ("why a row is drawn on the host and not on the card", "gpu/cuda/card_draws.py", "is_of_host"),
    (
        "what compiled grammars take of a worker's budget: grammar memory",
        "policies/memory/grammar_memory.py",
        "GrammarMemory",
    ),
    ("the process that tries grammars: checker process", "api/constraints/checker_process.py", "CheckerAnswers"),
    ("how a worker proves the bits of its card", "gpu/cuda/prove.py", "Prover"),
    ("how the body of a message of Anthropic's API becomes a chat", "api/anthropic/bodies.py", "parse_message"),
    ("which turn template a well-known model has", "api/text/turn/known_templates.py", "known_template"),
)
# words that any question has; half of the others must be read where the path and the name lead
COMMON = re.compile(
    "an?|and|any|are|as|at|be|been|can|do|does|for|from|gets?|goes|has|have|how|if|into|is|its?|long|many|may|much|not?|of|on"
    "|one|or|out|so|that|than|the|their|then|there|this|to|under|up|what|when|where|whether|which|whom?|whose|why|will|with"
)
# what a stranger greps for: words of the field, and the file whose docstring says them
SEARCHES = (
    ("admission control", "policies/requests/admission_limit.py"),
    ("API key", "api/http/auth.py"),
    ("at most once", "runtime/node/calls.py"),
    ("authentication", "api/http/auth.py"),
    ("autoscaling", "policies/cluster/provisioning.py"),
    ("batch invariance", "gpu/cuda/prove.py"),
    ("back-pressure", "actors/worker/reports.py"),
    ("back-pressure", "transport/outbound.py"),
    ("backoff", "policies/cluster/restart_policy.py"),
    ("block table", "gpu/tables.py"),
    ("bubble", "policies/sweep/microbatch_scheduler.py"),
    ("chunked prefill", "policies/sweep/planner.py"),
    ("constrained decoding", "gpu/sampling/masks.py"),
    ("CUDA graph", "gpu/cuda/graphs.py"),
    ("compaction", "policies/memory/compaction.py"),
    ("content-addressed", "zoo/zoo.py"),
    ("continuous batching", "policies/sweep/planner.py"),
    ("CORS", "api/http/cors.py"),
    ("dead letter", "runtime/base/dead_letters.py"),
    ("deadline", "runtime/base/scope.py"),
    ("deadlock", "policies/sweep/pipeline.py"),
    ("defragmentation", "policies/memory/compaction.py"),
    ("deserialization", "runtime/base/decoding.py"),
    ("deterministic simulation", "runtime/testing/simulation.py"),
    ("detokenizing", "api/text/detokenize.py"),
    ("draining", "policies/cluster/draining.py"),
    ("encryption", "transport/curve.py"),
    ("executor", "gpu/executor.py"),
    ("failover", "policies/requests/book/settling.py"),
    ("failure detection", "runtime/cluster/cluster.py"),
    ("fault injection", "runtime/testing/faults.py"),
    ("fencing", "runtime/node/peers.py"),
    ("flow control", "runtime/base/window.py"),
    ("fragmentation", "policies/memory/compaction.py"),
    ("function calling", "api/openai/tools.py"),
    ("garbage collection", "zoo/disk.py"),
    ("garbage collection", "zoo/remove.py"),
    ("gcc", "gpu/cpu/kernels/__init__.py"),
    ("graceful shutdown", "api/serve/server.py"),
    ("hidden states", "actors/worker/outbox.py"),
    ("head-of-line blocking", "policies/cluster/chunk_order.py"),
    ("KV migration", "policies/sweep/migration.py"),
    ("least loaded", "policies/requests/dispatch.py"),
    ("load balancing", "policies/requests/dispatch.py"),
    ("load shedding", "policies/requests/admission_limit.py"),
    ("logprobs", "api/openai/logprobs.py"),
    ("LoRA", "gpu/cpu/reference/deltas.py"),
    ("LoRA", "gpu/weights/lora_rules.py"),
    ("LRU", "policies/memory/eviction.py"),
    ("memory pool", "policies/memory/worker_memory.py"),
    ("microbatch", "policies/sweep/microbatch_scheduler.py"),
    ("model swapping", "policies/cluster/demand.py"),
    ("multi-tenancy", "policies/requests/account.py"),
    ("NCCL", "transport/nccl_link.py"),
    ("out of memory", "policies/sweep/preemption.py"),
    ("paged attention", "policies/memory/pages.py"),
    ("paged KV cache", "policies/memory/pages.py"),
    ("penalties", "gpu/sampling/rules.py"),
    ("pipeline parallelism", "policies/sweep/pipeline.py"),
    ("prefix cache", "policies/memory/prefix_index.py"),
    ("priority", "policies/requests/urgency.py"),
    ("queue position", "policies/requests/book/queue_position.py"),
    ("pooling", "gpu/sampling/pooling.py"),
    ("quotas", "policies/requests/rate_limit.py"),
    ("replica", "policies/requests/dispatch.py"),
    ("request timeout", "policies/requests/request_timeout.py"),
    ("reranker", "gpu/weights/embedder.py"),
    ("rolling update", "policies/cluster/application_life.py"),
    ("round robin", "policies/prediction/dispatching.py"),
    ("scaling", "policies/cluster/scaling.py"),
    ("scheduler", "policies/sweep/state.py"),
    ("serialization", "runtime/base/codec.py"),
    ("shared memory", "transport/shared_memory.py"),
    ("CUDA IPC", "transport/cupy_memory.py"),
    ("device slot", "transport/device_link.py"),
    ("snapshot", "policies/sweep/parts.py"),
    ("starvation", "policies/sweep/fair_share.py"),
    ("supervisor", "runtime/supervisor.py"),
    ("time slice", "policies/plan/time_slice.py"),
    ("TLS", "api/http/listening.py"),
    ("token bucket", "policies/requests/rate_limit.py"),
    ("trace replay", "policies/sweep/event_log.py"),
    ("watchdog", "runtime/node/stall_watch.py"),
    ("work stealing", "policies/offline/feed.py"),
)


def names_in(source: str) -> set[str]:
    """Functions, classes and methods of a module, and what it assigns on its own level."""
    tree = ast.parse(source)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def fault(path: str, term: str) -> str:
    """What is wrong with a guess; empty where it hits."""
    file = ROOT / path
    if not file.exists():
        return f"there is no {path}"
    return "" if term in names_in(file.read_text()) else f"{path} does not define {term}"


def stems(text: str) -> set[str]:
    """Return the beginnings of a text's words, without words that any question has. Names count as the words in them."""
    words = re.findall("[a-z]{2,}", re.sub("(?<=[a-z])(?=[A-Z])", " ", text).lower())
    return {re.sub("(ing|ed|es|s|e|y|ies)$", "", word)[:5] for word in words if not COMMON.fullmatch(word)}


def what_is_read_first(path: str, term: str) -> str:
    """Return a file's path and docstring, with the name that answers a question and its docstring."""
    tree = ast.parse((ROOT / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    named = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds) and node.name == term]
    return " ".join((path.removesuffix(".py"), ast.get_docstring(tree) or "", term, *named))


@claim("A newcomer finds the answer to a question in the file where one would look first", of="code-and-tests")
@pytest.mark.parametrize(("question", "path", "term"), GUESSES)
def test_a_guess_hits(question: str, path: str, term: str) -> None:
    assert fault(path, term) == "", question
    asked, said = stems(question), stems(what_is_read_first(path, term))
    assert 2 * len(asked & said) >= len(asked), f"{path} does not say {sorted(asked - said)}"


@claim("A newcomer finds the answer to a question in the file where one would look first", of="code-and-tests")
@pytest.mark.parametrize(("term", "path"), SEARCHES)
def test_a_search_for_a_term_of_the_field_finds_the_file(term: str, path: str) -> None:
    assert says((ROOT / path).read_text(), term)


def test_a_guess_that_misses_is_reported() -> None:
    assert fault("policies/requests/nothing.py", "x") == "there is no policies/requests/nothing.py"
    assert fault("policies/requests/queue.py", "Nothing") == "policies/requests/queue.py does not define Nothing"
    assert names_in("A = 1\nb: int = 2\nclass C:\n    def d(self): e = 3\n") == {"A", "b", "C", "d"}


def test_words_that_lead_nowhere_are_reported() -> None:
    assert stems("which worker's LoadHistory is it") == {"worke", "load", "histo"}
    assert stems("restarts, restarted, restarting") == {"resta"}
    assert "queu" in stems(what_is_read_first("policies/requests/queue.py", "WaitingQueue"))
    assert "lora" not in stems(what_is_read_first("policies/requests/queue.py", "WaitingQueue"))


def says(source: str, term: str) -> bool:
    """Whether the docstring of a module has the term, in whatever spelling: rate limit, rate-limit."""
    text = ast.get_docstring(ast.parse(source)) or ""
    return re.search(re.sub("[ -]", r"[ \\n_-]?", term), text, re.IGNORECASE) is not None


@pytest.mark.parametrize(
    "term",
    [
        "rate limit",
        "admission limit",
        "routing table",
        "eviction",
        "preemption",
        "retry after",
        "restart policy",
        "request ownership",
    ],
)
def test_a_term_of_the_field_is_the_name_of_one_file(term: str) -> None:
    name = term.replace(" ", "_") + ".py"
    found = [path for layer in LAYERS for path in (ROOT / layer).rglob(name)]
    assert len(found) == 1, found
    assert says(found[0].read_text(), term)
