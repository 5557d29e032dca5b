"""Sizes in the order of a layout, compared with numbers computed by hand."""

import numpy as np
import tensorflow as tf

from tpugraphs_polynormer.models.ranking.layout_sizes import NUM_SIZE_FEATURES, count_elements, sizes_in_order


def test_sizes_follow_the_layout_and_padding_is_told():
    dims = np.zeros([1, 3, 6], np.float32)
    dims[0, 0, :3] = (10, 256, 3)
    dims[0, 2, :2] = (7, 5)
    config_values = np.full([2, 18], -1)
    config_values[1, :3] = (2, 0, 1)  # output: dimension 2 minor, then 0, then 1
    config_values[1, 12:14] = (1, 0)  # kernel
    found = sizes_in_order(tf.constant(dims), tf.constant(config_values), tf.constant([[0, 1]])).numpy()
    assert found.shape == (1, 2, NUM_SIZE_FEATURES)
    assert not found[0, 0].any(), "a config value that asks for nothing says nothing"
    output, input_first, input_last, kernel_first, kernel_last = np.split(found[0, 1], 5)
    np.testing.assert_allclose(output[:6], np.log1p([3, 10, 256, 0, 0, 0]) / 4, rtol=1e-6)
    np.testing.assert_allclose(output[6:], np.log([128 / 3, 16 / 10]), rtol=1e-6)
    assert not input_first.any() and not input_last.any() and not kernel_first.any()
    np.testing.assert_allclose(kernel_last[:6], np.log1p([5, 7, 0, 0, 0, 0]) / 4, rtol=1e-6)
    np.testing.assert_allclose(kernel_last[6:], np.log([128 / 5, 8 / 7]), rtol=1e-6)


def test_tiles_add_whole_units_and_the_rest_of_the_minor_sizes():
    dims = np.zeros([1, 3, 6], np.float32)
    dims[0, 0, :2] = (300, 12)
    config_values = np.full([1, 18], -1)
    config_values[0, :2] = (1, 0)  # 12 is minor, then 300
    given = tf.constant(dims), tf.constant(config_values), tf.constant([[0]])
    found = sizes_in_order(*given, size_features="tiles").numpy()[0, 0]
    assert found.shape == (2 * NUM_SIZE_FEATURES,)
    output, *others = np.split(found, 5)
    np.testing.assert_array_equal(output[:8], sizes_in_order(*given).numpy()[0, 0, :8])
    by_128, by_8 = np.split(output[8:], 2)
    np.testing.assert_allclose(by_128, [0, np.log1p(2) / 4, 12 / 128, 44 / 128], rtol=1e-6)
    np.testing.assert_allclose(by_8, [np.log1p(1) / 4, np.log1p(37) / 4, 4 / 8, 4 / 8], rtol=1e-6)
    assert not np.any(others)


def test_elements_are_counted_over_the_dimensions_of_each_tensor():
    dims = np.zeros([1, 3, 6], np.float32)
    dims[0, 0, :3], dims[0, 1, :1] = (10, 256, 3), 7
    np.testing.assert_allclose(count_elements(tf.constant(dims)), [[np.log(7680), np.log(7), 0]], rtol=1e-6)
