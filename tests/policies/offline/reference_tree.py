"""What the offline order means, written down plainly: sets of prefixes and recursion, for small batches alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from blockwright.policies.offline.density import Costs, density

Prompt = tuple[int, ...]
LARGEST = 2**32 - 1


def random_prompts(random: Random, limit: int = 14) -> list[Prompt]:
    """Some prompts that share prefixes; some are equal, empty, or prefixes of others. Tokens take one to four bytes."""
    tokens = random.sample([0, 1, 2, 255, 256, 257, 65536, 151_000, LARGEST], random.randint(1, 4))
    prompts: list[Prompt] = []
    for _ in range(random.randint(1, limit)):
        base = random.choice(prompts) if prompts and random.random() < 0.7 else ()
        cut = base[: random.randint(0, len(base))] if random.random() < 0.7 else base
        prompts.append((*cut, *random.choices(tokens, k=random.choice([0, 1, 2, 3, 30]))))
    return prompts


def random_costs(random: Random) -> Costs:
    """In powers of two, so that sums are exact in any order, and equal densities equal."""
    return Costs(*(random.choice(values) for values in ([0.5, 1, 2], [0, 1 / 64, 1 / 8], [1 / 64, 1 / 8, 1], [0, 0.5])))


def prefixes(prompts: list[Prompt]) -> set[Prompt]:
    """Each distinct token of a batch, as what it ends."""
    return {prompt[:end] for prompt in prompts for end in range(1, len(prompt) + 1)}


def shared(one: Prompt, other: Prompt) -> int:
    return len(prefixes([one]) & prefixes([other]))


def token_cost(costs: Costs, behind: int) -> float:
    """Of the token of a prompt that so many come before: the square grows by this."""
    return costs.token + costs.attend * ((behind + 1) ** 2 - behind**2)


def answer_cost(costs: Costs, length: float) -> float:
    return length * (costs.token + costs.sample)


def reading(costs: Costs, prompt: int, answer: int) -> float:
    """Each token of the answer reads all that comes before it, and itself."""
    return sum(costs.read * (prompt + made) for made in range(1, answer + 1))


@dataclass
class Node:
    """A node of the radix tree: the prefix that it ends, the requests below, its children."""

    prefix: Prompt
    requests: list[int]
    children: list[Node] = field(default_factory=list)

    @property
    def leaf(self) -> bool:
        return not self.children


def grow(prompts: list[Prompt], requests: list[int], prefix: Prompt = ()) -> Node:
    """The radix tree below a prefix, children by their first token, an empty leaf first."""
    node = Node(prefix, requests)
    depth = len(prefix)
    node.children = [Node(prefix, [request]) for request in requests if len(prompts[request]) == depth]
    for token in sorted({prompts[request][depth] for request in requests if len(prompts[request]) > depth}):
        below = [request for request in requests if prompts[request][depth : depth + 1] == (token,)]
        ends = min(len(prompts[request]) for request in below)
        while len({prompts[request][:ends] for request in below}) > 1:
            ends -= 1
        longest = prompts[below[0]][:ends]
        node.children.append(Node(longest, below) if len(below) == 1 else grow(prompts, below, longest))
    return node


def weigh(node: Node, above: int, prompts: list[Prompt], outputs: list[int], costs: Costs) -> tuple[float, float]:
    """Compute and memory time of all below a node whose parent ends ``above`` tokens."""
    below = {prefix for prefix in prefixes([prompts[request] for request in node.requests]) if len(prefix) > above}
    comp = sum(token_cost(costs, len(prefix) - 1) for prefix in below)
    comp += sum(answer_cost(costs, outputs[request]) for request in node.requests)
    return comp, sum(reading(costs, len(prompts[request]), outputs[request]) for request in node.requests)


Weights = dict[int, tuple[float, float]]  # compute and memory time of nodes, by their ``id``


def layer_sort(node: Node, above: int, prompts: list[Prompt], outputs: list[int], costs: Costs) -> Weights:
    """Sort children by density, downwards; what all nodes take."""
    weights = {id(node): weigh(node, above, prompts, outputs, costs)}
    for child in node.children:
        weights |= layer_sort(child, len(node.prefix), prompts, outputs, costs)
    node.children.sort(key=lambda child: -density(*weights[id(child)]))
    return weights


def leaves(node: Node) -> list[int]:
    return list(node.requests) if node.leaf else [request for child in node.children for request in leaves(child)]


def runs(nodes: list[Node], rho: dict[int, float], factor: float) -> list[list[Node]]:
    """Of nodes in falling order of density, in each of which the first is at most so many times as dense as the last."""
    found: list[list[Node]] = []
    for node in nodes:
        if not found or rho[id(node)] * factor < rho[id(found[-1][0])]:
            found.append([])
        found[-1].append(node)
    return found


def split_as_in_the_paper(node: Node, allowance: float) -> list[list[Node]]:
    """Its listing, with leaves kept: what stays together, each time one node."""
    if node.leaf or len(node.prefix) * len(node.children) > allowance:
        return [[node]]
    return [one for child in node.children for one in split_as_in_the_paper(child, allowance / len(node.children))]


def split_in_proportion(node: Node, allowance: float, prompts: list[Prompt], rho: dict[int, float]) -> list[list[Node]]:
    """With an allowance in proportion to prompt tokens, of which opening takes what it costs, and which leaves do not need.
    What it does not suffice for is opened as far as it suffices. ``rho``: densities by ``id`` of a node."""
    depth = len(node.prefix)
    price = depth * (len(runs(node.children, rho, 1.0)) - 1)
    if node.leaf:
        return [[node]]
    if depth and price >= allowance:
        count = 1 + int(allowance / depth)
        width = rho[id(node.children[0])] / max(rho[id(node.children[-1])], 1e-9)
        found = runs(node.children, rho, width ** (1 / count) * (1 + 1e-9)) if count > 1 else []
        return found if len(found) > 1 else [[node]]

    def tokens(one: Node) -> int:
        return sum(len(prompts[request]) for request in one.requests)

    total = sum(tokens(child) for child in node.children if not child.leaf) or 1
    found = []
    for child in node.children:
        found += split_in_proportion(child, (allowance - price) * tokens(child) / total, prompts, rho)
    return found
