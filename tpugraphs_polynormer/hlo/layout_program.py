"""A program, the layouts that may be chosen in it, and how much of that is known."""

from __future__ import annotations

from dataclasses import dataclass

from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.choices import Choices, enumerate_choices
from tpugraphs_polynormer.hlo.features import ModuleArrays, featurize_module
from tpugraphs_polynormer.hlo.module import Instruction, Module


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

    @property
    def provenance(self) -> str:
        """Where module and default come from, in a few words."""
        if self.topology is None:
            return "the program as given, the compiler's default presumed"
        return f"the program as the TPU compiler for {self.topology} sees it, with its own default"


def presume_layouts(module: Module) -> LayoutProgram:
    """The program as it was given.

    Raises:
      HloError: no instruction has a layout that could be chosen.
    """
    choices = enumerate_choices(module)
    if not len(choices.node_ids):
        raise HloError(f"module {module.name!r} has no convolution, dot or reshape: there is nothing to choose")
    return LayoutProgram(module, choices)
