"""The inputs of the model, compared with numbers computed by hand."""

import numpy as np
import pytest
import tensorflow as tf

from tpugraphs_polynormer.hlo.operands import NUM_OPERAND_BITS, unpack_operands
from tpugraphs_polynormer.models.ranking.features import (
    ConfigValueFeatures,
    LayoutEmbedding,
    NodeFeatures,
    minor_to_major,
    positions_in_layouts,
    unpack_bits,
)

NUM_SCALED = 140 - 6  # the minor-to-major columns are embedded, not scaled


def node_features(*, raw: bool = False, heavy=(), mean=None, std=None, embedding=None) -> NodeFeatures:
    return NodeFeatures(
        mean=[0.0] * 140 if mean is None else mean,
        std=[1.0] * 140 if std is None else std,
        heavy=list(heavy),
        opcode_dim=3,
        layout_embedding=embedding or LayoutEmbedding(dim=2),
        raw=raw,
    )


def row(**columns: float) -> np.ndarray:
    """[1, 140]: zeros, except for the columns named c<number>."""
    features = np.zeros((1, 140), np.float32)
    for name, value in columns.items():
        features[0, int(name[1:])] = value
    return features


def encode(encoder: NodeFeatures, features: np.ndarray, opcode: int = 7) -> np.ndarray:
    return encoder(tf.constant(features), tf.constant([opcode] * len(features), tf.int64)).numpy()


def test_columns_are_standardised_and_heavy_ones_logged_first():
    mean, std = [0.0] * 140, [1.0] * 140
    mean[3], std[3], mean[4], std[4] = 10.0, 4.0, 1.0, 2.0
    encoder = node_features(heavy=[4, 5], mean=mean, std=std)
    encoded = encode(encoder, row(c3=4.0, c4=np.e**3 - 1, c5=-(np.e**2 - 1)))[0]
    np.testing.assert_allclose(encoded[3:6], [(4 - 10) / 4, (3 - 1) / 2, -2], rtol=1e-5)


def test_constant_columns_are_ignored_whatever_they_hold():
    mean, std = [0.0] * 140, [1.0] * 140
    mean[9], std[9] = 5.0, 0.0
    encoder = node_features(mean=mean, std=std)
    np.testing.assert_array_equal(encode(encoder, row(c9=1e6)), encode(encoder, row(c9=5.0)))
    assert encode(encoder, row(c9=1e6))[0, 9] == 0


def test_scaled_values_are_clipped_to_ten_deviations():
    assert encode(node_features(), row(c2=-400.0, c6=11.0))[0, [2, 6]].tolist() == [-10, 10]


def test_columns_after_minor_to_major_are_not_shifted_or_lost():
    encoded = encode(node_features(), row(c133=3.0))[0]
    assert encoded[133] == 3.0
    assert len(encoded) == NUM_SCALED + 3 + 6 * 2


def test_minor_to_major_padding_is_told_from_axis_0_by_rank():
    """Zeros after the first 2, 3 and 0 entries (the rank) are padding; a zero before them is an axis."""
    rank_2 = row(c21=8, c22=16, c134=0, c135=1)
    rank_3 = row(c21=8, c22=16, c23=4, c134=2, c135=1, c136=0)
    scalar = row()
    found = minor_to_major(tf.constant(np.concatenate([rank_2, rank_3, scalar]))).numpy()
    assert found.tolist() == [[0, 1, -1, -1, -1, -1], [2, 1, 0, -1, -1, -1], [-1] * 6]


def test_one_table_serves_nodes_and_candidates():
    embedding = LayoutEmbedding(dim=2)
    nodes, settings = node_features(embedding=embedding), ConfigValueFeatures(kind="layout", layout_embedding=embedding)
    setting = np.full((1, 18), -1.0, np.float32)
    setting[0, :2] = [1, 0]
    of_candidate = settings(tf.constant(setting)).numpy()[0]
    table = embedding.table.numpy()  # value v at row v + 1
    np.testing.assert_allclose(of_candidate, np.concatenate([table[2], table[1], *[table[0]] * 16]))
    of_node = encode(nodes, row(c21=4, c22=4, c134=1, c135=0))[0, NUM_SCALED + 3 :]
    np.testing.assert_allclose(of_node, np.concatenate([table[2], table[1], *[table[0]] * 4]))
    assert len(embedding.weights) == 1


def test_positions_are_the_inverse_of_each_layout():
    entries = np.full((1, 12), -1.0, np.float32)
    entries[0, :4], entries[0, 6:8] = (3, 0, 2, 1), (5, 0)
    found = positions_in_layouts(tf.constant(entries)).numpy()
    assert found.tolist() == [[1, 3, 2, 0, -1, -1, 1, -1, -1, -1, -1, 0]]
    whole = np.random.default_rng(0).permuted(np.tile(np.arange(6), (5, 1)), axis=1)
    np.testing.assert_array_equal(positions_in_layouts(tf.constant(whole)), np.argsort(whole, 1))


def test_position_and_both_embed_the_inverse():
    entries = np.array([[2, 0, 1, -1, -1, -1]], np.float32)
    order, positions = [3, 1, 2, 0, 0, 0], [2, 3, 1, 0, 0, 0]  # rows of the table: value + 1
    for name, rows in (("position", positions), ("both", order + [7 + each for each in positions])):
        embedding = LayoutEmbedding(dim=2, layout_features=name)
        found = embedding(tf.constant(entries)).numpy()
        np.testing.assert_allclose(found[0], embedding.table.numpy()[rows].ravel())


def test_opcodes_are_rows_of_their_table():
    encoder = node_features()
    encoded = encode(encoder, np.zeros((1, 140), np.float32), opcode=120)[0]
    np.testing.assert_allclose(encoded[NUM_SCALED : NUM_SCALED + 3], encoder.opcodes.numpy()[120])


def test_tile_bounds_are_logged():
    encoder = ConfigValueFeatures(kind="tile", layout_embedding=LayoutEmbedding(dim=2))
    bounds = np.array([[0, 1, 3, 7, 0, 0, 11, np.e - 1]], np.float32)
    np.testing.assert_allclose(encoder(tf.constant(bounds)).numpy(), np.log1p(bounds), rtol=1e-6)


@pytest.mark.parametrize("kind, width", [("layout", 18), ("tile", 8)])
def test_raw_mode_scales_nothing_but_layouts(kind, width):
    encoder = node_features(raw=True, mean=[5.0] * 140, std=[3.0] * 140, heavy=range(140))
    features = np.arange(140, dtype=np.float32)[None]
    encoded = encode(encoder, features)[0]
    np.testing.assert_array_equal(encoded[:140], features[0])
    assert len(encoded) == 143 and len(encoder.weights) == 1
    values = np.arange(width, dtype=np.float32)[None] - 1
    raw = ConfigValueFeatures(kind=kind, layout_embedding=LayoutEmbedding(dim=2), raw=True)
    scale = 100 if kind == "layout" else 1  # as in the official layout baseline
    np.testing.assert_array_equal(raw(tf.constant(values)).numpy(), scale * values)


def test_the_bits_of_operands_follow_the_other_inputs():
    packed = np.array([0, 1 << 26 | 1 << 24 | 0b100, (1 << NUM_OPERAND_BITS) - 1])
    np.testing.assert_array_equal(unpack_bits(tf.constant(packed)), unpack_operands(packed))
    features, opcodes = tf.zeros([3, 140]), tf.zeros([3], tf.int64)
    fields = {"mean": [0.0] * 140, "std": [1.0] * 140, "heavy": [], "opcode_dim": 3}
    encoder = NodeFeatures(**fields, layout_embedding=LayoutEmbedding(dim=2), operands=True)
    encoded = encoder(features, opcodes, tf.constant(packed)).numpy()
    np.testing.assert_array_equal(encoded[:, -NUM_OPERAND_BITS:], unpack_operands(packed))
    assert encoded.shape[1] == NUM_SCALED + 3 + 12 + NUM_OPERAND_BITS
