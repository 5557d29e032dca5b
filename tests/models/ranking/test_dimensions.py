"""The encoder that dimensions share, compared with a loop over them."""

import numpy as np
import tensorflow as tf

from tpugraphs_polynormer.models.ranking.dimensions import DimensionEncoder


def encoder_of(dim: int = 4, units: int = 5) -> DimensionEncoder:
    tf.keras.utils.set_random_seed(0)
    return DimensionEncoder(dim=dim, units=units)


def random_inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    dims = random.integers(1, 300, [3, 3, 6]).astype(np.float32)
    dims[:, :, 4:] = 0
    config_values = np.full([4, 18], -1)
    for value in config_values[1:]:
        for layout in range(3):
            value[6 * layout : 6 * layout + 4] = random.permutation(4)
    return dims, config_values, random.integers(0, 4, [3, 2]).astype(np.int32)


def test_it_is_a_sum_over_dimensions():
    encoder, (dims, config_values, codes) = encoder_of(), random_inputs()
    found = encoder(*map(tf.constant, (dims, config_values, codes))).numpy()
    kernel, bias = encoder.from_sizes.get_weights()
    (of_positions,), (join,) = encoder.from_positions.get_weights(), encoder.join.get_weights()
    expected = np.zeros([3, 2, 5])
    for node, candidate in np.ndindex(3, 2):
        layouts = config_values[codes[node, candidate]].reshape(3, 6).tolist()
        for dimension in range(4):  # no tensor has the others, and no layout names them
            hidden = np.log1p(dims[node, :, dimension]) / 4 @ kernel + bias
            for number, layout in enumerate(layouts):
                position = layout.index(dimension) if dimension in layout else -1
                hidden = hidden + of_positions[7 * number + position + 1]
            expected[node, candidate] += np.maximum(hidden, 0) @ join
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_renumbered_dimensions_change_nothing():
    encoder, (dims, config_values, codes) = encoder_of(), random_inputs()
    order = np.array([2, 0, 3, 1, 4, 5])
    renamed = np.where(config_values < 0, -1, np.argsort(order)[np.maximum(config_values, 0)])
    before, after = (
        encoder(*map(tf.constant, each)).numpy()
        for each in ((dims, config_values, codes), (dims[:, :, order], renamed, codes))
    )
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)
