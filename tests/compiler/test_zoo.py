"""The zoo: what is drawn, without JAX."""

from tpugraphs_polynormer.compiler.zoo import FAMILIES, draw_zoo_program


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


def test_names_tell_the_sizes():
    program = draw_zoo_program(0, 0)
    sizes = "_".join(f"{name}{value}" for name, value in program.sizes.items())
    assert program.name == f"alexnet_{sizes}_{program.precision}_{'train' if program.train else 'test'}"
