"""The zoo: what is drawn, without JAX."""

import pytest

from tpugraphs_polynormer.compiler.zoo import FAMILIES, draw_zoo_program
from tpugraphs_polynormer.errors import UserError


def test_families_take_turns_and_sizes_are_drawn_from_the_seed():
    programs = [draw_zoo_program(number, 3) for number in range(70)]
    assert [each.family for each in programs[:7]] == list(FAMILIES)
    assert programs == [draw_zoo_program(number, 3) for number in range(70)]
    assert programs != [draw_zoo_program(number, 4) for number in range(70)]
    for each in programs:
        assert each.sizes.keys() == FAMILIES[each.family].keys()
        assert all(value in FAMILIES[each.family][name] for name, value in each.sizes.items())
    assert {(each.train, each.precision) for each in programs} == {
        (a, b) for a in (True, False) for b in ("f32", "bf16")
    }


def test_no_two_programs_are_equal_and_an_empty_zoo_is_one_line():
    """Of seed 0, numbers 22 and 29, and 2 and 37, were equal, and one of them was held out."""
    assert len({draw_zoo_program(number, 0).name for number in range(350)}) == 350
    with pytest.raises(UserError, match=r"no program number .* of unet3d; ask for at most"):
        draw_zoo_program(3 + 7 * 200, 0)


def test_names_tell_the_sizes():
    program = draw_zoo_program(0, 0)
    sizes = "_".join(f"{name}{value}" for name, value in program.sizes.items())
    assert program.name == f"alexnet_{sizes}_{program.precision}_{'train' if program.train else 'test'}"
