"""Padded sizes and element sizes, compared with numbers computed by hand."""

import numpy as np

from tpugraphs_polynormer.hlo.features import ELEMENT_TYPE, ELEMENT_TYPE_NAMES, ELEMENT_TYPE_ORDER
from tpugraphs_polynormer.hlo.shapes import element_bytes, padded_elements, round_up


def test_padding_is_to_8_sublanes_and_128_lanes():
    assert padded_elements((5, 5), (1, 0)) == 8 * 128
    assert padded_elements((7, 129), (1, 0)) == 8 * 256
    assert padded_elements((3, 129), (0, 1)) == 128 * 136
    assert padded_elements((9, 9, 5, 100), (3, 0, 2, 1)) == 16 * 9 * 5 * 128
    assert padded_elements((130,), (0,)) == 256
    assert padded_elements((), ()) == 1


def test_few_rows_have_a_smaller_tile():
    """As in the real unet_3d program: f32[3,3,3,4,32]{4,3,2,1,0:T(4,128)}."""
    assert padded_elements((3, 3, 3, 4, 32), (4, 3, 2, 1, 0)) == 27 * 4 * 128
    assert [padded_elements((rows, 128), (1, 0)) // 128 for rows in range(1, 10)] == [1, 2, 4, 4, 8, 8, 8, 8, 16]


def test_rounding_up():
    assert [round_up(value, 8) for value in (0, 1, 8, 9)] == [0, 8, 8, 16]


def test_element_bytes_of_every_type():
    node_feat = np.zeros((len(ELEMENT_TYPE_ORDER), 140), np.float32)
    node_feat[:, ELEMENT_TYPE] = np.eye(len(ELEMENT_TYPE_ORDER))
    names = [ELEMENT_TYPE_NAMES[number] for number in ELEMENT_TYPE_ORDER]
    found = dict(zip(names, element_bytes(node_feat).tolist(), strict=True))
    for name, size in found.items():
        bits = int("".join(filter(str.isdigit, name)) or 0)
        assert size == (1 if name == "pred" else bits // 8), name
