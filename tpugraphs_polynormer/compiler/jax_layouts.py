"""Applies a candidate to a JAX function: the same function, with `with_layout_constraint` where the candidate says so.

An equation of the function's jaxpr is named by its path, such as 3 or 3.0.2 for the third equation of the computation
that equation 3 calls. `mark_equations` writes the paths into the names that JAX gives the ops of the lowered program,
where the compiler keeps them; so each config node names the equation that it was made of. JAX is imported in functions.

All config nodes are constrained, also those with the compiler's default, as in a judged candidate: what is left free
takes other layouts when its neighbours change.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tpugraphs_polynormer.compiler.layouts import NodeOrders, Origin
from tpugraphs_polynormer.compiler.program import CompiledProgram
from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.module import Instruction

_logger = logging.getLogger(__name__)
# What becomes a convolution, a dot or a reshape of the same shapes.
_OPCODES = {
    "conv_general_dilated": "convolution",
    "dot_general": "dot",
    "reshape": "reshape",
    "squeeze": "reshape",
    "expand_dims": "reshape",
}
# Equations whose computations are part of the program. Others, such as the body of a Pallas kernel, are left alone.
_CALLS = frozenset(
    "jit pjit closed_call core_call remat2 checkpoint custom_jvp_call custom_vjp_call scan while cond".split()  # noqa: SIM905
)
_MARK = re.compile(r"equation\[([\d.]+)\]/?")
Scope = dict[Any, dict[Any, Any]]  # a variable of one computation -> {order: the variable constrained to it}
Visit = Callable[[str, Any, Scope], Sequence[Any]]  # (path, equation, scope) -> the equations in its place


@dataclass(frozen=True)
class Constraint:
    """The layouts that one equation gets, and the config node and source line that they come from."""

    equation: str
    node: str
    opcode: str
    orders: NodeOrders
    shapes: tuple[tuple[int, ...], ...]  # of the result and the operands
    source: str  # such as model.py:13, or the op's or instruction's name where the file is not known
    is_default: bool  # the compiler's own choice, kept where neighbours change

    def __str__(self) -> str:
        parts = []
        for number, order in enumerate((self.orders.output, *self.orders.operands)):
            if order:
                tensor = "result" if number == 0 else f"operand {number}"
                parts.append(f"{tensor}: with_layout_constraint(x, Layout(major_to_minor={_major_to_minor(order)}))")
        kept = " (the compiler's default, kept)" if self.is_default else ""
        return f"{self.source}: {self.opcode} {list(self.shapes[0])}{kept}, " + "; ".join(parts)


@dataclass(frozen=True)
class Constraints:
    """What a candidate says about a JAX function: constraints by equation, and the nodes without an equation.

    `left_out` has a reason for each config node that the compiler made or changed itself, or whose equation is unknown.
    """

    by_equation: Mapping[str, Constraint]
    left_out: Mapping[str, str]

    def __str__(self) -> str:
        lines = [str(each) for each in self.by_equation.values()]
        lines += [f"{node}: left out, {reason}" for node, reason in self.left_out.items()]
        return "\n".join(lines)


def find_constraints(program: CompiledProgram, indices: np.ndarray) -> Constraints:
    """The constraints of a candidate of a program that `compile_jax` made.

    Args:
      program: from `compile_jax`; programs from files have no equations, so all their nodes are left out.
      indices: int [nc], the number of each config node's choice.
    """
    orders = program.forced_orders(indices)
    by_equation: dict[str, Constraint] = {}
    left_out: dict[str, str] = {}
    for node, index in zip(program.config_nodes, np.asarray(indices).tolist(), strict=True):
        origin = program.origins.get(node.name)
        if origin is None or not origin.equation:
            left_out[node.name] = "no equation is known for it"
        elif not origin.unchanged:
            left_out[node.name] = f"the compiler changed {origin.name}, which it was made of"
        else:
            made = _make_constraint(program, node, origin, orders[node.name], is_default=index == 0)
            other = by_equation.setdefault(origin.equation, made)
            if other.orders != made.orders:
                left_out[node.name] = f"its equation has the layouts of {other.node} already"
    return Constraints(by_equation, left_out)


def describe_constraints(program: CompiledProgram, indices: np.ndarray) -> str:
    """Where `with_layout_constraint` belongs in the source of a program, line by line; also for programs from files.

    Nodes with the compiler's default are not listed, and those that it made or changed itself are named at the end.

    Args:
      program: as the compiler sees it. indices: int [nc], the number of each config node's choice.
    """
    orders, lines, left_out = program.forced_orders(indices), [], []
    for node, index in zip(program.config_nodes, np.asarray(indices).tolist(), strict=True):
        origin = program.origins.get(node.name)
        if index and origin is not None and origin.unchanged:
            lines.append(str(_make_constraint(program, node, origin, orders[node.name], is_default=False)))
        elif index:
            left_out.append(node.name)
    if left_out:
        lines.append(f"no source is known for {len(left_out)} nodes that the compiler made: {', '.join(left_out)}")
    return "\n".join(lines) or "nothing to constrain: this is the compiler's default"


def _make_constraint(
    program: CompiledProgram, node: Instruction, origin: Origin, orders: NodeOrders, *, is_default: bool
) -> Constraint:
    return Constraint(
        equation=origin.equation,
        node=node.name,
        opcode=node.opcode,
        orders=orders,
        shapes=program.tensor_shapes(node),
        source=f"{origin.source_file}:{origin.source_line}" if origin.source_file else origin.op_name or origin.name,
        is_default=is_default,
    )


@dataclass(eq=False)  # jax.jit wants a hash
class ConstrainedFunction:
    """A JAX function with layout constraints; call it, or give it to `jax.jit`, like the function that it was made of.

    `constraints` tells what was left out. They act where the program is compiled for TPUs. Gradients must be taken
    before: the equations of a gradient are others.
    """

    function: Callable[..., Any]
    constraints: Constraints
    __name__: str = field(default="constrained", repr=False)

    def __call__(self, *args: Any) -> Any:
        """The function's result.

        Raises:
          HloError: the function with these arguments lacks an equation of the constraints.
        """
        import jax

        closed, shape = jax.make_jaxpr(self.function, return_shape=True)(*args)
        pending = dict(self.constraints.by_equation)
        rewritten = rewrite_equations(
            closed, lambda path, equation, scope: _constrain(equation, pending.pop(path, None), scope)
        )
        if pending:
            first = next(iter(pending.values()))
            raise HloError(
                f"equation {first.equation} ({first.opcode}, {first.source}) is not in the function; expected the "
                "function and the shapes of arguments that were given to compile_jax"
            )
        results = jax.jit(_as_function(rewritten, self.__name__))(*jax.tree_util.tree_leaves(args))
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shape), results)


def apply_layouts(function: Callable[..., Any], program: CompiledProgram, indices: np.ndarray) -> ConstrainedFunction:
    """The function that computes the same and asks the compiler for the layouts of a candidate.

    Args:
      function: the function that was given to `compile_jax`.
      program: what `compile_jax` returned.
      indices: int [nc], the number of each config node's choice.
    """
    constraints = find_constraints(program, indices)
    if constraints.left_out:
        _logger.info(
            "%d config nodes are constrained; %d are left out, because no equation has their tensors: %s",
            len(constraints.by_equation),
            len(constraints.left_out),
            ", ".join(constraints.left_out),
        )
    return ConstrainedFunction(function, constraints, getattr(function, "__name__", "constrained"))


def mark_equations(closed: Any) -> Any:
    """The closed jaxpr with the path of each convolution, dot and reshape in the name of its op."""

    def mark(path: str, equation: Any, _: Scope) -> list[Any]:
        source = equation.source_info
        return [equation.replace(source_info=source.replace(name_stack=source.name_stack.extend(f"equation[{path}]")))]

    return rewrite_equations(closed, mark)


def read_marks(origin: Origin) -> Origin:
    """An origin whose op_name has lost the mark, and which names the equation instead."""
    found = _MARK.search(origin.op_name)
    return replace(origin, op_name=_MARK.sub("", origin.op_name), equation=found[1]) if found else origin


def rewrite_equations(closed: Any, visit: Visit) -> Any:
    """A closed jaxpr in which `visit` has replaced the equations that become config nodes, in called ones too."""
    return closed.replace(jaxpr=_rewrite(closed.jaxpr, "", visit))


def _rewrite(jaxpr: Any, prefix: str, visit: Visit) -> Any:
    renamed: dict[Any, Any] = {}  # a result -> what later equations read instead
    scope: Scope = {}
    equations = []
    for number, equation in enumerate(jaxpr.eqns):
        path, name = f"{prefix}{number}", equation.primitive.name
        equation = equation.replace(invars=[_read(each, renamed) for each in equation.invars])
        if name in _OPCODES:
            equations += visit(path, equation, scope)
            (result,) = equations[-1].outvars
            if result is not equation.outvars[0]:
                renamed[equation.outvars[0]] = result
        else:
            equations.append(_rewrite_called(equation, path, visit) if name in _CALLS else equation)
    return jaxpr.replace(eqns=equations, outvars=[_read(each, renamed) for each in jaxpr.outvars])


def _read(atom: Any, renamed: Mapping[Any, Any]) -> Any:
    from jax.extend.core import Var

    return renamed.get(atom, atom) if isinstance(atom, Var) else atom  # a literal has no hash


def _rewrite_called(equation: Any, path: str, visit: Visit) -> Any:
    """An equation whose computations, of which a conditional has several, are rewritten."""
    from jax.extend.core import ClosedJaxpr, Jaxpr

    count = 0

    def change(value: Any) -> Any:
        nonlocal count
        if isinstance(value, tuple) and any(isinstance(each, ClosedJaxpr) for each in value):
            return tuple(change(each) for each in value)
        if not isinstance(value, ClosedJaxpr | Jaxpr):
            return value
        prefix, count = f"{path}.{count}.", count + 1
        if isinstance(value, Jaxpr):
            return _rewrite(value, prefix, visit)
        return value.replace(jaxpr=_rewrite(value.jaxpr, prefix, visit))

    return equation.replace(params={name: change(value) for name, value in equation.params.items()})


def _constrain(equation: Any, constraint: Constraint | None, scope: Scope) -> list[Any]:
    """The equations of a constrained one: constraints of operands, the equation, the constraint of its result."""
    if constraint is None:
        return [equation]
    shapes = tuple(tuple(each.aval.shape) for each in (equation.outvars[0], *equation.invars))
    if _OPCODES[equation.primitive.name] != constraint.opcode or shapes[: len(constraint.shapes)] != constraint.shapes:
        raise HloError(
            f"equation {constraint.equation} is {equation.primitive.name} of {shapes}; expected a {constraint.opcode} "
            f"of {constraint.shapes}: give the function and the shapes of arguments that were given to compile_jax"
        )
    made, operands = [], list(equation.invars)
    for number, order in enumerate(constraint.orders.operands[: len(operands)]):
        if order:
            made += _constrain_operand(operands[number], order, scope)
            operands[number] = scope[operands[number]][order]
    made.append(equation.replace(invars=operands))
    if constraint.orders.output:
        made += _constraint_equations(equation.outvars[0], constraint.orders.output)
    return made


def _constrain_operand(value: Any, order: Sequence[int], scope: Scope) -> list[Any]:
    """The equations that constrain a variable to one more order; none if it has that order already."""
    made = scope.setdefault(value, {})
    if order in made:
        return []
    equations = _constraint_equations(value, order, num_barriers=len(made))
    made[order] = equations[-1].outvars[0]
    return equations


def _constraint_equations(value: Any, order: Sequence[int], *, num_barriers: int = 0) -> list[Any]:
    """The equations of `with_layout_constraint` of a variable, traced by JAX, so that their results are new variables.

    They are for TPUs alone: with jaxlib 0.10.2, a constraint of a convolution's result gives wrong values on a CPU.
    Barriers keep the constraints of one variable apart: XLA takes two of one tensor for the same, because JAX writes
    the order where XLA does not look before it assigns layouts.
    """
    import jax
    from jax.experimental.layout import Layout, with_layout_constraint

    layout = Layout(major_to_minor=_major_to_minor(order))

    def constrain_on_tpu(x: Any) -> Any:
        for _ in range(num_barriers):
            x = jax.lax.optimization_barrier(x)
        return with_layout_constraint(x, layout)

    def constrain(x: Any) -> Any:
        return jax.lax.platform_dependent(x, tpu=constrain_on_tpu, default=lambda x: x)

    traced = jax.make_jaxpr(constrain)(jax.ShapeDtypeStruct(value.aval.shape, value.aval.dtype)).jaxpr
    placed = {traced.invars[0]: value}
    return [each.replace(invars=[_read(atom, placed) for atom in each.invars]) for each in traced.eqns]


def _major_to_minor(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(reversed(order))


def _as_function(closed: Any, name: str) -> Callable[..., Any]:
    from jax.extend.core import jaxpr_as_fun

    evaluate = jaxpr_as_fun(closed)

    def function(*leaves: Any) -> Any:
        return evaluate(*leaves)

    function.__name__ = name
    return function


def lower_marked(function: Callable[..., Any], *args: Any) -> bytes:
    """The serialized HloModuleProto of a JAX function, lowered for TPUs, with marked equations."""
    import jax

    marked = mark_equations(jax.make_jaxpr(function)(*args))
    leaves = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in marked.in_avals]
    traced = jax.jit(_as_function(marked, getattr(function, "__name__", "function"))).trace(*leaves)
    return traced.lower(lowering_platforms=("tpu",)).compiler_ir("hlo").as_serialized_hlo_module_proto()
