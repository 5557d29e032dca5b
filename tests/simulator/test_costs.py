"""The cost models, compared with numbers computed by hand and with real runtimes."""

import numpy as np
import pytest
from scipy.stats import kendalltau

from tpugraphs_polynormer.archives.npz import read_archive
from tpugraphs_polynormer.hlo.choices import enumerate_choices
from tpugraphs_polynormer.hlo.features import featurize_module
from tpugraphs_polynormer.hlo.layout_flow import ProgramLayouts
from tpugraphs_polynormer.hlo.module import WindowDimension
from tpugraphs_polynormer.hlo.sampling import draw_indices, gather_layouts
from tpugraphs_polynormer.simulator.array_shapes import F32
from tpugraphs_polynormer.simulator.builder import ModuleBuilder
from tpugraphs_polynormer.simulator.convolutions import convolution_numbers
from tpugraphs_polynormer.simulator.costs import LayoutCosts, contraction_size, encode_choices, layout_seconds, measure
from tpugraphs_polynormer.simulator.hardware import TPU_V3
from tpugraphs_polynormer.simulator.programs import FAMILIES, draw_program
from tpugraphs_polynormer.simulator.scales import SCALES
from tpugraphs_polynormer.simulator.tile_costs import TileCosts, bounds_features, physical_units

PEAK, BANDWIDTH = TPU_V3.peak_flops, TPU_V3.hbm_bandwidth
LAST_MINOR, FIRST_MINOR = (1, 0), (0, 1)


def setting(output=(), operand=(), kernel=()):
    """The 18 features of one choice."""
    return [value for part in (output, operand, kernel) for value in (*part, *(-1,) * (6 - len(part)))]


def dot_program(follow=()):
    """A program: x [32, 64] times w [64, 256], then a chain of elementwise opcodes, returned in a tuple."""
    module = ModuleBuilder("dot")
    main = module.computation("main")
    value = main.dot(main.parameter((32, 64), F32), main.parameter((64, 256), F32))
    for opcode in follow:
        value = main.unary(opcode, value)
    main.finish(main.tuple([value]))
    return featurize_module(module.build())


def price(arrays, rows):
    """The seconds of a program with one config node, node 2, for each of its config values."""
    candidates = np.array(rows, dtype=np.int8)[:, None]
    return layout_seconds(arrays.node_feat, arrays.node_opcode, arrays.edge_index, np.array([2]), candidates=candidates)


def test_dot_costs_what_paper_and_pencil_say():
    matrix = 2 * 32 * 256 * 128 / PEAK  # 64 products per element, padded to 128
    traffic = 4 * (32 * 128 + 64 * 256 + 32 * 256) / BANDWIDTH  # x is padded from 64 to 128 lanes
    assert price(dot_program(), [setting(LAST_MINOR)])[0] == pytest.approx(max(matrix, traffic), rel=1e-12)


def test_one_disagreeing_edge_costs_exactly_one_copy():
    """With the first dim minor, 32 is padded to 128 lanes; the tuple needs the last dim minor, so there is one copy."""
    agreeing, disagreeing = price(dot_program(), [setting(LAST_MINOR), setting(FIRST_MINOR)])
    wide, narrow = 4 * 128 * 256, 4 * 32 * 256
    operands = 4 * (32 * 128 + 64 * 256)
    copy = (wide + narrow) / BANDWIDTH
    operator = max(2 * 128 * 256 * 128 / PEAK, (operands + wide) / BANDWIDTH)
    assert disagreeing == pytest.approx(operator + copy, rel=1e-12)
    assert agreeing == pytest.approx((operands + narrow) / BANDWIDTH, rel=1e-12)


def test_layout_passes_through_elementwise_nodes_to_the_boundary():
    """There is one copy, at the end of the chain, for every length; fused nodes cost nothing."""
    one, three = (price(dot_program(chain), [setting(FIRST_MINOR)])[0] for chain in (["tanh"], ["tanh"] * 3))
    assert one == pytest.approx(three, rel=1e-12)
    direct = price(dot_program(), [setting(FIRST_MINOR)])[0]
    wide = 4 * 128 * 256 / BANDWIDTH  # the dot's result is read, the chain's result written
    assert one == pytest.approx(direct + 2 * wide, rel=1e-12)


def test_operand_layouts_are_hidden_behind_the_transfer():
    """The transposition of an operand for the systolic array costs nothing here, as in the real alexnet archive."""
    rows = [setting(LAST_MINOR, a, b) for a in (LAST_MINOR, FIRST_MINOR) for b in (LAST_MINOR, FIRST_MINOR)]
    assert len(set(price(dot_program(), rows).tolist())) == 1


def test_exchanged_minor_dims_of_an_operand_are_free_and_others_pass_the_cross_lane_unit():
    """A convolution's input [2, 8, 8, 128] with features and batch minor is taken as it is, with columns minor not."""
    module = ModuleBuilder("turn")
    main = module.computation("main")
    dims = (8, 256, 256, 128)
    value = main.reshape(main.parameter((8, 256 * 256 * 128), F32), dims)
    kernel = main.parameter((1, 1, 128, 1), F32)
    window = [WindowDimension(1, 1, 0, 0, 1, 1)] * 2
    made = main.convolution(value, kernel, (*dims[:3], 1), window, convolution_numbers(4, "forward"))
    main.finish(main.tuple([made]))
    arrays = featurize_module(module.build())
    nodes = np.array([1, 3])
    convolution = setting((3, 0), (3, 0), (3, 2))
    reshapes = [setting(layout, (1, 0)) for layout in ((3, 0, 2, 1), (0, 3, 2, 1), (3, 2, 1, 0))]
    candidates = np.array([[row, convolution] for row in reshapes], dtype=np.int8)
    choices, _ = encode_choices(candidates)
    graph = (arrays.node_feat, arrays.node_opcode, arrays.edge_index, nodes)
    (operator,) = LayoutCosts(ProgramLayouts(*graph, choices))._operators
    ((source, table),) = operator.turns
    layouts = [tuple(row[:4].tolist()) for row in choices[0]]
    assert source == 0 and table.shape == (1, 3)
    seconds = dict(zip(layouts, table[0].tolist(), strict=True))
    assert seconds[3, 0, 2, 1] == seconds[0, 3, 2, 1] == 0
    assert seconds[3, 2, 1, 0] == pytest.approx(8 * 256 * 256 * 128 / TPU_V3.transpose_rate)


def test_space_fills_the_tile_of_a_small_batch():
    """[2, 16, 16, 32]: features are padded to 128 lanes or to 8 rows, the batch of 2 in neither place."""
    for batch, sizes in ((2, (2 * 256 * 128, 2 * 256 * 32)), (16, (16 * 256 * 128, 128 * 256 * 32))):
        module = ModuleBuilder("small")
        main = module.computation("main")
        main.finish(main.parameter((batch, 16, 16, 32), F32))
        arrays = featurize_module(module.build())
        graph = (arrays.node_feat, arrays.node_opcode, arrays.edge_index)
        program = ProgramLayouts(*graph, np.zeros(0, np.int64), [])
        assert tuple(program.padded_size(0, layout) for layout in ((3, 0, 2, 1), (0, 3, 2, 1))) == sizes


def test_a_dimension_of_one_is_nowhere_padded_and_moved_for_nothing():
    """[64, 1] is stored as 64 elements whichever dim is minor, so no copy is needed between the two layouts."""
    module = ModuleBuilder("degenerate")
    main = module.computation("main")
    main.finish(main.tuple([main.dot(main.parameter((64, 32), F32), main.parameter((32, 1), F32))]))
    arrays = featurize_module(module.build())
    first, second = price(arrays, [setting(LAST_MINOR), setting(FIRST_MINOR)])
    assert first == second
    graph = (arrays.node_feat, arrays.node_opcode, arrays.edge_index)
    program = ProgramLayouts(*graph, np.zeros(0, np.int64), [])
    assert [program.padded_size(2, layout) for layout in (LAST_MINOR, FIRST_MINOR)] == [128, 128]


@pytest.mark.parametrize(
    ("first", "second", "over", "batch", "contracted"),
    [
        ((512, 27, 128), None, ((2,), (2,)), ((0,), (0,)), 128),  # a recommender: one operand, twice
        ((8, 128, 12, 64), (8, 128, 12, 64), ((3,), (3,)), ((0, 2), (0, 2)), 64),  # attention: batch dims not leading
        ((8, 12, 128, 100), (8, 100, 12, 64), ((3,), (1,)), ((0, 1), (0, 2)), 100),
        ((8, 128, 768), (768, 12, 64), ((2,), (0,)), ((), ()), 768),
        ((8, 128, 12, 64), (12, 64, 768), ((2, 3), (0, 1)), ((), ()), 768),
        ((256, 256), (256, 256), ((1,), (0,)), ((), ()), 256),
    ],
)
def test_the_contraction_of_a_dot_is_found_without_its_dimension_numbers(first, second, over, batch, contracted):
    module = ModuleBuilder("contraction")
    main = module.computation("main")
    one = main.parameter(first, F32)
    dot = main.dot(one, one if second is None else main.parameter(second, F32), over, batch)
    main.finish(dot)
    arrays = featurize_module(module.build())
    graph = (arrays.node_feat, arrays.node_opcode, arrays.edge_index)
    program = ProgramLayouts(*graph, np.zeros(0, np.int64), [])
    node = arrays.positions[dot.id]
    assert contraction_size(program, node, program.operands[node]) == contracted


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_candidates_are_priced_one_by_one_as_together(family):
    """Choice numbers, archive features, any order and any block size give the same seconds."""
    module = draw_program(family, SCALES["tiny"].size, np.random.default_rng(3))
    arrays, choices = featurize_module(module), enumerate_choices(module)
    indices = draw_indices(choices, 40, seed=1, mode="random", tied=False)
    layout_choices = [choices.table[a : a + k] for a, k in zip(choices.starts, choices.counts, strict=True)]
    graph = (arrays.node_feat, arrays.node_opcode, arrays.edge_index, choices.node_ids)
    seconds = LayoutCosts(ProgramLayouts(*graph, layout_choices)).seconds(indices)
    order = np.random.default_rng(0).permutation(40)
    np.testing.assert_allclose(
        layout_seconds(*graph, candidates=gather_layouts(choices, indices[order])), seconds[order], rtol=1e-9
    )
    alone = [LayoutCosts(ProgramLayouts(*graph, layout_choices)).seconds(row[None])[0] for row in indices[:5]]
    np.testing.assert_allclose(alone, seconds[:5], rtol=1e-12)
    assert (seconds > 0).all()


def test_encoding_keeps_every_setting():
    candidates = np.random.default_rng(0).integers(-1, 6, size=(50, 3, 18)).astype(np.int8)
    candidates[25:] = candidates[:25]
    choices, ids = encode_choices(candidates)
    rebuilt = np.stack([rows[ids[:, node]] for node, rows in enumerate(choices)], axis=1)
    np.testing.assert_array_equal(rebuilt, candidates)
    assert [len(rows) for rows in choices] == [25, 25, 25]


def test_noise_is_as_large_as_measured_and_seeded():
    seconds = np.full(20_000, 0.08)
    first, again = (measure(seconds, np.random.default_rng(5)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert first.dtype == np.int64
    assert np.std(first / 0.08e9) == pytest.approx(2.7e-4, rel=0.05)
    assert measure(np.array([1e-15]), np.random.default_rng(0))[0] == 1


def test_tile_units_follow_the_layout():
    assert physical_units((32, 26, 26, 192), (3, 0, 2, 1)) == (26, 26, 4, 2)  # as in the real fusion.232
    assert physical_units((4096, 1000), (0, 1)) == (125, 32)  # as in the real fusion.261
    assert physical_units((4096,), (0,)) == (4,)


def negation(dims):
    module = ModuleBuilder("negate")
    main = module.computation("main")
    main.finish(main.unary("negate", main.parameter(dims, F32)))
    arrays = featurize_module(module.build())
    return TileCosts(arrays.node_feat, arrays.node_opcode, arrays.edge_index)


def test_tile_costs_what_paper_and_pencil_say():
    """[64, 256] has 8 x 2 native tiles; with bounds (4, 2) there are two steps of full rows."""
    costs = negation((64, 256))
    features = bounds_features(np.zeros((1, 0), int), np.array([[4, 2]]))
    assert features[0, 8:16].tolist() == [4, 2, 0, 0, 0, 0, 6, 8]
    assert not features[0, :8].any() and not features[0, 16:].any()
    run = 8 * 1024 * 4  # bytes of a tile, which is contiguous
    transfer = 2 * 64 * 256 * 4 / BANDWIDTH * (run + 512) / run
    work = 16 * 2 / (2 * TPU_V3.clock)
    expected = 2 * TPU_V3.step_seconds + max(transfer, work) + transfer / 2
    assert costs.seconds(features)[0] == pytest.approx(expected, rel=1e-9)


def test_tiles_beyond_the_memory_pay_for_the_spill():
    """16384 x 1024 floats are 64 MiB of input and output: two halves do not fit into 16 MiB, two 32nds do."""
    costs = negation((16384, 1024))
    whole, fitting = costs.seconds(bounds_features(np.zeros((2, 0), int), np.array([[2048, 8], [64, 8]])))
    held = costs.tile_bytes(bounds_features(np.zeros((1, 0), int), np.array([[2048, 8]])))[0]
    assert held == 2 * 2 * 16384 * 1024 * 4
    assert whole - fitting > 2 * (held - TPU_V3.vmem_bytes) / BANDWIDTH - 32 * TPU_V3.step_seconds


def test_real_alexnet_is_ranked_well(real_data):
    archive = read_archive(real_data / "tpugraphs" / "layout" / "alexnet_train_batch_32.npz")
    graph = (archive.node_feat, archive.node_opcode, archive.edge_index, archive.node_config_ids)
    seconds = layout_seconds(*graph, candidates=archive.node_config_feat)
    assert kendalltau(seconds, archive.config_runtime).statistic > 0.7


def test_real_kernels_are_ranked_well(real_data):
    taus = []
    for path in sorted((real_data / "tpugraphs" / "tile").glob("fusion*.npz")):
        archive = read_archive(path)
        seconds = TileCosts(archive.node_feat, archive.node_opcode, archive.edge_index).seconds(archive.config_feat)
        ratio = archive.config_runtime / archive.config_runtime_normalizers
        taus.append(kendalltau(seconds, ratio).statistic)
        assert ratio[np.argsort(seconds)[:5]].min() == ratio.min(), path.name
    assert np.mean(taus) > 0.75
