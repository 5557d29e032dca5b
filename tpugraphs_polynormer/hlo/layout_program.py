"""A program, the layouts that may be chosen in it, and how much of that is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.choices import Choices, enumerate_choices
from tpugraphs_polynormer.hlo.describe import describe_layouts
from tpugraphs_polynormer.hlo.features import ModuleArrays, featurize_module
from tpugraphs_polynormer.hlo.module import Instruction, Metadata, Module


@dataclass(frozen=True)
class LayoutProgram:
    """A module with the choices of its config nodes; choice 0 of each node is the compiler's default.

    `topology` is None for a program as it was given, whose default is presumed (hlo/choices.py). Otherwise the TPU
    compiler of that topology made the module, just before it assigns layouts, and told its own default.
    """

    module: Module
    choices: Choices
    topology: str | None = None

    @property
    def arrays(self) -> ModuleArrays:
        """The graph of the program, with the 140 node features."""
        return featurize_module(self.module)

    @property
    def config_nodes(self) -> list[Instruction]:
        """The instructions whose layouts are chosen, in the order of `choices`."""
        instructions = [each for computation in self.module.computations for each in computation.instructions]
        return [instructions[row] for row in self.choices.node_ids.tolist()]

    def find_metadata(self, node: Instruction) -> Metadata | None:
        """What is known of the source of a config node; None if nothing is."""
        return node.metadata

    @property
    def provenance(self) -> str:
        """Where module and default come from, in a few words."""
        if self.topology is None:
            return "the program as given, the compiler's default presumed"
        return f"the program as the TPU compiler for {self.topology} sees it, with its own default"


def number_layouts(program: LayoutProgram, layouts: np.ndarray) -> np.ndarray:
    """int16 [c, nc]: the choice numbers of candidates that are given as layouts [c, nc, 18].

    Raises:
      HloError: a layout is not legal; the message names the node, the layout and those that are.
    """
    layouts, choices = np.asarray(layouts), program.choices
    if layouts.ndim != 3 or layouts.shape[1:] != (len(choices.node_ids), choices.table.shape[1]):
        expected = f"(candidates, {len(choices.node_ids)}, {choices.table.shape[1]})"
        raise HloError(f"layouts: found an array of shape {layouts.shape}, expected {expected}")
    found = np.zeros(layouts.shape[:2], np.int16)
    for node, instruction in enumerate(program.config_nodes):
        legal = choices.table[choices.starts[node] : choices.starts[node] + choices.counts[node]]
        equal = (layouts[:, node, None] == legal).all(axis=2)
        if not equal.any(axis=1).all():
            candidate = int(np.flatnonzero(~equal.any(axis=1))[0])
            wrong = describe_layouts(instruction.opcode, layouts[candidate, node])
            right = "; ".join(describe_layouts(instruction.opcode, row) for row in legal)
            where = f"candidate {candidate}, {instruction.opcode} {instruction.name!r}"
            raise HloError(f"layouts: {where}: found {wrong}, expected one of: {right}")
        found[:, node] = equal.argmax(axis=1)
    return found


def presume_layouts(module: Module) -> LayoutProgram:
    """The program as it was given.

    Raises:
      HloError: no instruction has a layout that could be chosen.
    """
    choices = enumerate_choices(module)
    if not len(choices.node_ids):
        raise HloError(f"module {module.name!r} has no convolution, dot or reshape: there is nothing to choose")
    return LayoutProgram(module, choices)
