"""The opcode numbers of TpuGraphs: an HLO opcode's name to its id, and back."""

from __future__ import annotations

# In the order of ids, which start at 1; id 0 means an opcode that the dataset does not know.
_NAMES_FROM_ONE = """
    abs add add-dependency after-all all-reduce all-to-all atan2 batch-norm-grad batch-norm-inference
    batch-norm-training bitcast bitcast-convert broadcast call ceil cholesky clamp collective-permute
    count-leading-zeros compare complex concatenate conditional constant convert convolution copy copy-done
    copy-start cosine custom-call divide domain dot dynamic-slice dynamic-update-slice exponential
    exponential-minus-one fft floor fusion gather get-dimension-size set-dimension-size get-tuple-element imag
    infeed iota is-finite log log-plus-one and not or xor map maximum minimum multiply negate outfeed pad
    parameter partition-id popcnt power real recv recv-done reduce reduce-precision reduce-window remainder
    replica-id reshape reverse rng rng-get-and-update-state rng-bit-generator round-nearest-afz rsqrt scatter
    select select-and-scatter send send-done shift-left shift-right-arithmetic shift-right-logical sign sine
    slice sort sqrt subtract tanh trace transpose triangular-solve tuple tuple-select while cbrt all-gather
    collective-permute-start collective-permute-done logistic dynamic-reshape all-reduce-start all-reduce-done
    reduce-scatter all-gather-start all-gather-done opt-barrier async-start async-update async-done
    round-nearest-even stochastic-convert tan
""".split()  # noqa: SIM905

UNKNOWN_OPCODE = 0
OPCODE_NAMES: tuple[str, ...] = ("unknown", *_NAMES_FROM_ONE)
OPCODE_IDS: dict[str, int] = {name: number for number, name in enumerate(_NAMES_FROM_ONE, start=1)}

# Opcodes of config nodes: a candidate chooses their layouts.
CONFIGURABLE_OPCODES: tuple[str, ...] = ("convolution", "dot", "reshape")
# Opcodes whose result is computed in the layout that its consumer needs.
FREE_OPCODES = frozenset(
    """broadcast constant iota rng rng-bit-generator rng-get-and-update-state partition-id replica-id
    """.split()  # noqa: SIM905
)
ELEMENTWISE_OPCODES = frozenset(
    """abs add and atan2 bitcast-convert cbrt ceil clamp compare complex convert copy cosine count-leading-zeros
    divide exponential exponential-minus-one floor imag is-finite log log-plus-one logistic maximum minimum multiply
    negate not or popcnt power real reduce-precision remainder round-nearest-afz round-nearest-even rsqrt select
    shift-left shift-right-arithmetic shift-right-logical sign sine sqrt stochastic-convert subtract tan tanh xor
    """.split()  # noqa: SIM905
)


def opcode_id(name: str) -> int:
    """The TpuGraphs id of an HLO opcode name; 0 if the dataset has none."""
    return OPCODE_IDS.get(name, UNKNOWN_OPCODE)
