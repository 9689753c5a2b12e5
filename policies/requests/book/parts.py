"""The parts of a request book. Each owns its data and knows no other; procedures are given all of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from ...adaptive.similarity import AnswersToScore
from ..absent import LEAST_WASTE, LRU, AbsentConversations
from ..admission_limit import AdmissionLimit
from ..chain_switch import ChainSwitches
from ..known_pages import KnownPages
from ..kv_dispatch import OFF
from ..poison import Quarantine
from ..queue import WaitingQueue
from ..request_timeout import RequestTimeout
from ..routing_table import RoutingTable
from .application_usage import ApplicationUsage
from .capacity_waits import CapacityWaits
from .catalogue import Catalogue
from .dispatch_queries import DispatchQueries
from .lengths import Lengths
from .messages import Effect
from .offline import OfflineBook
from .pauses import Pauses
from .record import RequestRecord
from .route_claims import RouteClaims
from .settlement import RequestClaim
from .switches import Switches
from .tier_choices import TierChoices
from .values import ModelInfo, RequestView
from .workers import Workers


@dataclass(frozen=True, slots=True)
class ChainRules:
    """The rules by which a gateway chooses among chains.

    target: seconds to the first token beyond which a less accurate variant may serve; 0: none. switches: of one request.
    similarity_share: share of variants' answers that the listed chain scores. kv: as in ``kv_dispatch.py``;
    the two after it as in ``absent.py``.
    """

    target: float = 0.0
    switches: int = 0
    similarity_share: float = 0.0
    kv: str = OFF
    proactive_copies: bool = False
    cold_kv: str = LRU

    @property
    def knows_kv(self) -> bool:
        """True if the KV of requests counts which no variant may serve, too."""
        return self.kv != OFF


PLAIN = ChainRules()


class BookParts:
    """The parts of one gateway's book (see the module)."""

    def __init__(
        self,
        address: str,
        models: Sequence[ModelInfo],
        *,
        page_size: int,
        timeouts: RequestTimeout,
        overload: AdmissionLimit,
        tenants: int = 0,
        lengths: Lengths | None = None,
        asks: bool = False,
        rules: ChainRules = PLAIN,
    ) -> None:
        self.address = address  # address of the gateway actor, where workers send reports
        self.page_size = page_size
        self.timeouts = timeouts
        self.overload = overload
        self.tenants = tenants  # tenants that have keys; 0: no keys, so applications are accounts
        self.rules = rules
        self.table = RoutingTable(model.id for model in models)
        self.catalogue = Catalogue(models, self.table)
        self.workers = Workers()
        self.pages = KnownPages()  # of requests whose KV counts
        self.quarantine = Quarantine()
        self.usage = ApplicationUsage()
        self.lengths = lengths or Lengths()
        self.active: dict[str, RequestRecord] = {}  # all and only the requests that have not ended
        self.past: OrderedDict[str, RequestView] = OrderedDict()  # the last that ended
        self.queue = WaitingQueue()  # the requests of ``active`` that wait for a route
        self.capacity_waits = CapacityWaits()
        self.asking = DispatchQueries(asks)  # questions about queued requests; asks: dispatchers choose between routes
        self.offline = OfflineBook()  # the offline requests of ``active``
        self.choices = TierChoices()
        self.claims = RouteClaims()  # of running requests on other routes
        self.pauses = Pauses()
        self.switches = Switches()
        self.chains = ChainSwitches(rules.switches)
        self.absent = AbsentConversations(proactive=rules.proactive_copies, cold=rules.cold_kv == LEAST_WASTE)
        self.scoring = AnswersToScore(rules.similarity_share)  # answers of variants
        self.choices.figures.similarity = self.scoring.found
        self.draining = False
        self.arrivals = 0  # requests admitted so far
        self.freed = False  # a route has become idle or is no longer reserved: others may start
        self.due: list[RequestClaim] = []  # what reports have said that is not settled yet
        self.effects: list[Effect] = []  # of the event being handled

    def emit(self, effect: Effect) -> None:
        """Add an effect to those of the event being handled."""
        self.effects.append(effect)

    def take_effects(self) -> list[Effect]:
        """Return and clear the effects."""
        effects, self.effects = self.effects, []
        return effects

    def recount(self, record: RequestRecord) -> None:
        """Recount the tokens that a request has left to compute, after any change to it."""
        placement = record.placement
        change = record.cost() - placement.counted
        if change:
            placement.counted += change
            self.overload.charge(record.account, change)
            self.table.charge(placement.workers, change)
