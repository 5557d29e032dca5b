"""Changes of a layout candidate that a search tries: what a node may become, and how its neighbours follow it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tpugraphs_polynormer.hlo.choices import MAX_RANK, Choices
from tpugraphs_polynormer.hlo.sampling import LinkAgreement


class LayoutChanges:
    """The units of a program that can change, and their changes. Candidates are choice numbers int16 [nc].

    `nodes` and `groups` are lists of units, int64 arrays of config nodes: every node with more than one choice alone,
    and the nodes of every group (`Choices.groups`) together.
    """

    def __init__(self, choices: Choices) -> None:
        self._choices, self._agreement = choices, LinkAgreement(choices)
        free = np.flatnonzero(choices.counts > 1)
        self.nodes = [np.array([node]) for node in free]
        self.groups = [np.flatnonzero(choices.groups == group) for group in np.unique(choices.groups[free])]
        self._links: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for consumer, operand_number, producer in choices.links.tolist():
            for node in {consumer, producer}:
                self._links[node].append((consumer, operand_number, producer))

    def list_choices(self, node: int, choice: int, *, outputs_only: bool = False) -> list[tuple[int, int]]:
        """(distance, other choice) of a node that now has a choice.

        The distance is the number of its tensors (output, input, kernel) whose layouts contradict each other; a tensor
        that is left to the compiler contradicts nothing.

        Args:
          node, choice: the config node and its present choice.
          outputs_only: only the closest choice for each other layout of the output. The layouts of operands matter
            less: turning them is free for many operators (simulator/costs.py).
        """
        layouts = self._layouts(node)
        given = (layouts != -1).any(axis=2)
        contradicts = (layouts != layouts[choice]).any(axis=2) & given & given[choice]
        found = [
            (distance, other) for other, distance in enumerate(contradicts.sum(axis=1).tolist()) if other != choice
        ]
        if not outputs_only:
            return found
        outputs = [layout.tobytes() for layout in layouts[:, 0]]
        closest = {outputs[other]: (distance, other) for distance, other in sorted(found, reverse=True)}
        closest.pop(outputs[choice], None)
        return list(closest.values())

    def follow(self, candidate: np.ndarray, node: int, *, depth: int) -> None:
        """Changes the nodes linked to a node, those linked to them, and so on to a depth, so that layouts agree.

        A node that cannot agree keeps its choice; one that can changes as few of its layouts as possible.
        """
        done, front = {int(node)}, [int(node)]
        for _ in range(depth):
            found = []
            for consumer, operand_number, producer in (link for each in front for link in self._links[each]):
                other = producer if consumer in done else consumer
                if other in done:
                    continue
                table = self._agreement(consumer, operand_number, producer)
                agrees = table[:, candidate[consumer]] if other == producer else table[candidate[producer]]
                if agrees.any():
                    candidate[other] = self._closest(other, int(candidate[other]), agrees)
                    done.add(other)
                    found.append(other)
            front = found

    def _closest(self, node: int, choice: int, allowed: np.ndarray) -> int:
        layouts = self._layouts(node)
        distance = (layouts != layouts[choice]).any(axis=2).sum(axis=1)
        return int(np.where(allowed, distance, distance.max() + 1).argmin())

    def _layouts(self, node: int) -> np.ndarray:
        """int8 [choices, 3, 6]."""
        start = self._choices.starts[node]
        return self._choices.table[start : start + self._choices.counts[node]].reshape(-1, 3, MAX_RANK)
