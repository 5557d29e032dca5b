"""A candidate applied to a JAX function: the same values, and constraints where the candidate says so."""

import dataclasses

import numpy as np
import pytest

from tests.hlo.programs import array, program
from tpugraphs_polynormer.compiler.jax_layouts import apply_layouts, find_constraints, lower_marked, read_marks
from tpugraphs_polynormer.compiler.layouts import (
    NodeOrders,
    Origin,
    _parse,
    prepare_module,
    read_assigned,
    read_origins,
)
from tpugraphs_polynormer.compiler.program import CompiledProgram, compare_origins, enumerate_assigned
from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.module import Instruction
from tpugraphs_polynormer.hlo.protobuf import parse_module
from tpugraphs_polynormer.hlo.sampling import draw_indices

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402


def conditional_loop(x, w):
    """Dots in a loop, in both branches of a conditional and in a jitted function that is called twice; a reshape."""
    twice = jax.jit(lambda value: value @ w)
    value = jax.lax.fori_loop(0, 3, lambda _, value: jnp.tanh(value @ w), x)
    value = jax.lax.cond(value.sum() > 0, lambda value: value @ w, lambda value: value @ w.T, value)
    return jax.nn.relu(twice(twice(value))).reshape(2, -1), value


ARGS = (np.linspace(-1, 1, 16 * 64, dtype=np.float32).reshape(16, 64), np.eye(64, dtype=np.float32) / 2)


def uncompiled(function, *args) -> CompiledProgram:
    """The program of a compiler that changes nothing, and assigns the layouts of the lowered program."""
    given = lower_marked(function, *args)
    prepared = prepare_module(given)
    module, assigned = parse_module(prepared), read_assigned(prepared, prepared)
    origins = compare_origins(module, parse_module(given), read_origins(given, prepared))
    return CompiledProgram(
        module,
        enumerate_assigned(module, assigned),
        "v3:2x2",
        snapshot=prepared,
        assigned=assigned,
        origins={name: read_marks(origin) for name, origin in origins.items()},
        unforced={},
    )


def constrained_orders(function, *args) -> list[tuple]:
    """(shape, order) of the constraints in the program that is lowered for TPUs."""
    lowered = _parse(lower_marked(function, *args))
    return sorted(
        (tuple(each.shape.dimensions), tuple(each.shape.layout.minor_to_major))
        for computation in lowered.computations
        for each in computation.instructions
        if each.custom_call_target == b"LayoutConstraint"
    )


def test_every_node_names_its_own_equation_and_source_line():
    compiled = uncompiled(conditional_loop, *ARGS)
    equations = [compiled.origins[node.name].equation for node in compiled.config_nodes]
    assert len(set(equations)) == len(equations) == 6, "also the two calls of one jitted function"
    for origin in compiled.origins.values():
        assert origin.unchanged and "equation" not in origin.op_name
        assert origin.source_file.endswith("test_jax_layouts.py") and origin.source_line > 0


def test_an_applied_candidate_computes_the_same_and_constrains_every_tensor():
    compiled = uncompiled(conditional_loop, *ARGS)
    candidate = draw_indices(compiled.choices, 3, seed=3, mode="random", tied=False)[2]
    applied = apply_layouts(conditional_loop, compiled, candidate)
    assert not applied.constraints.left_out and len(applied.constraints.by_equation) == 6
    for function in (applied, jax.jit(applied)):
        for found, wanted in zip(function(*ARGS), conditional_loop(*ARGS), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
    wanted = []
    for constraint in applied.constraints.by_equation.values():
        pairs = zip(constraint.shapes, (constraint.orders.output, *constraint.orders.operands), strict=False)
        wanted += [(shape, order) for shape, order in pairs if order]
    found = constrained_orders(applied, *ARGS)
    # Operands that have one order in two equations of a computation share a constraint.
    assert set(found) == set(wanted) and len(found) <= len(wanted)


def test_two_orders_of_one_operand_are_kept_apart():
    def both(x):
        return x @ x

    compiled = uncompiled(both, np.eye(8, dtype=np.float32))
    (node,) = compiled.config_nodes
    rows = [tuple(compiled.forced_orders([index])[node.name].operands) for index in range(compiled.choices.counts[0])]
    index = rows.index(((0, 1), (1, 0)))
    found = constrained_orders(apply_layouts(both, compiled, np.array([index])), np.eye(8, dtype=np.float32))
    assert {order for _, order in found} == {(0, 1), (1, 0)} and len(found) == 3


def test_what_no_equation_stands_for_is_named_with_a_reason():
    compiled = uncompiled(conditional_loop, *ARGS)
    names = [node.name for node in compiled.config_nodes]
    origins = {name: origin for name, origin in compiled.origins.items() if name != names[0]}
    origins[names[1]] = dataclasses.replace(origins[names[1]], unchanged=False)
    origins[names[2]] = dataclasses.replace(origins[names[2]], equation=origins[names[3]].equation)
    candidate = draw_indices(compiled.choices, 3, seed=3, mode="random", tied=False)[2]
    found = find_constraints(dataclasses.replace(compiled, origins=origins), candidate)
    assert len(found.by_equation) == 3 and list(found.left_out)[:2] == names[:2]
    told = str(found)
    assert f"{names[0]}: left out, no equation is known for it" in told
    assert f"{names[1]}: left out, the compiler changed" in told and "has the layouts of" in told
    assert "with_layout_constraint(x, Layout(major_to_minor=(" in told and "test_jax_layouts.py:" in told


def test_another_function_is_refused():
    compiled = uncompiled(conditional_loop, *ARGS)
    default = np.zeros(6, int)
    with pytest.raises(HloError, match=r"equation .* is not in the function; expected the function and the shapes"):
        apply_layouts(lambda x, w: x + 1, compiled, default)(*ARGS)
    with pytest.raises(HloError, match=r"expected a dot of \(\(16, 64\)"):
        apply_layouts(conditional_loop, compiled, default)(ARGS[0][:8], ARGS[1])


def test_a_changed_instruction_is_noticed():
    def made(*dims):
        return program(
            Instruction(1, "parameter", array(8, 8), "x"), Instruction(2, "reshape", array(*dims), "y", (1,))
        )

    origins = {"y": Origin("y")}
    assert compare_origins(made(64), made(64), origins)["y"].unchanged
    assert not compare_origins(made(4, 16), made(64), origins)["y"].unchanged


def test_a_constraint_says_what_to_write():
    compiled = uncompiled(lambda x: x @ x, np.eye(8, dtype=np.float32))
    (constraint,) = find_constraints(compiled, np.array([0])).by_equation.values()
    assert constraint.orders == NodeOrders((1, 0), ((), ())) and constraint.is_default
    assert (
        "dot [8, 8] (the compiler's default, kept), result: with_layout_constraint(x, Layout(major_to_minor=(0, 1)))"
        in (str(constraint))
    )
