"""The propagation of chosen layouts to other nodes."""

import numpy as np

from tpugraphs_polynormer.hlo.features import featurize_module
from tpugraphs_polynormer.hlo.layout_flow import FIXED, ProgramLayouts
from tpugraphs_polynormer.simulator.array_shapes import F32
from tpugraphs_polynormer.simulator.builder import ModuleBuilder


def test_sources_follow_transposes_and_reduces():
    module = ModuleBuilder("source")
    main = module.computation("main")
    value = main.dot(main.parameter((4, 16, 8), F32), main.parameter((4, 8, 24), F32), ((2,), (1,)), ((0,), (0,)))
    turned = main.transpose(value, (2, 0, 1))  # [24, 4, 16]
    main.finish(main.tuple([main.reduce(turned, (1,))]))  # [24, 16]
    arrays = featurize_module(module.build())
    dot = arrays.positions[value.id]
    choices = [np.array([[1, 2, *[-1] * 16], [2, 1, *[-1] * 16]], dtype=np.int8)]
    program = ProgramLayouts(arrays.node_feat, arrays.node_opcode, arrays.edge_index, np.array([dot]), choices)
    node = arrays.positions[turned.id]
    assert program.nodes[dot].layouts == ((1, 2, 0), (2, 1, 0))
    assert program.nodes[node].layouts == ((2, 0, 1), (0, 2, 1))
    reduce = len(program.dims) - 2
    assert program.dims[reduce] == (24, 16)
    assert program.nodes[reduce].source == 0
    assert program.nodes[reduce].layouts == ((1, 0), (0, 1))
    assert program.nodes[0].source == FIXED
