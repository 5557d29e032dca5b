"""The optimum of the cost model, compared with all candidates of small programs and with many of larger ones."""

import itertools

import numpy as np
import pytest

from tpugraphs_polynormer.hlo.choices import enumerate_choices
from tpugraphs_polynormer.hlo.features import featurize_module
from tpugraphs_polynormer.hlo.layout_flow import FIXED
from tpugraphs_polynormer.hlo.sampling import MODES, draw_indices
from tpugraphs_polynormer.simulator.array_shapes import F32
from tpugraphs_polynormer.simulator.builder import ModuleBuilder
from tpugraphs_polynormer.simulator.costs import CostTables, LayoutCosts, Operator, price_choices
from tpugraphs_polynormer.simulator.optimum import find_optimum
from tpugraphs_polynormer.simulator.programs import FAMILIES, draw_program
from tpugraphs_polynormer.simulator.scales import SCALES


def price(module):
    """The choices of a module and its cost model."""
    choices = enumerate_choices(module)
    return choices, price_choices(featurize_module(module), choices)


def chain(rng):
    """A random program of three or four dots and reshapes, with a sum of two of them."""
    module = ModuleBuilder("chain")
    main = module.computation("main")
    sizes = (8, 50, 100, 128, 200)
    rows, width = (int(size) for size in rng.choice(sizes, 2))
    value = main.parameter((rows, width), F32)
    values = [value]
    for _ in range(3):
        value = main.unary("tanh", main.dot(value, main.parameter((width, width), F32)))
        values.append(value)
    if rng.random() < 0.5:
        value = main.reshape(value, (rows, 1, width))
    else:
        value = main.binary("add", value, values[int(rng.integers(3))])
    main.finish(main.tuple([value]))
    return module.build()


class RandomCosts(LayoutCosts):
    """Random tables of all kinds, denser than those of a program: a small cost model without a program."""

    def __init__(self, rng, counts):
        self._constant = 1.0
        self._unary = [rng.random(count) for count in counts]
        self._buffers = [np.zeros(count) for count in counts]
        nodes = range(len(counts))
        pairs = [pair for pair in itertools.permutations(nodes, 2) if rng.random() < 0.4]
        self._pairs = {(a, b): 3 * rng.random((counts[a], counts[b])) for a, b in pairs}
        self._operators = []
        for index in nodes:
            sources = [int(each) for each in rng.integers(FIXED, len(counts), size=2)]
            width = {each: 1 if each == FIXED else counts[each] for each in sources}
            self._operators.append(
                Operator(
                    index=index,
                    matrix=2 * rng.random(counts[index]),
                    write=rng.random(counts[index]),
                    reads=tuple((each, rng.random(width[each])) for each in sources),
                    turns=tuple((each, 3 * rng.random((counts[index], width[each]))) for each in sources[: index % 3]),
                )
            )


def all_candidates(counts):
    return np.array(list(itertools.product(*(range(count) for count in counts))))


@pytest.mark.parametrize("seed", range(40))
def test_it_is_the_best_of_all_candidates_of_random_tables(seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 5, size=int(rng.integers(1, 7))).tolist()
    costs = RandomCosts(rng, counts)
    found = find_optimum(costs)
    assert found.is_exact
    assert found.indices.dtype == np.int16
    assert found.seconds == costs.seconds(found.indices[None])[0]
    assert found.seconds == pytest.approx(costs.seconds(all_candidates(counts)).min(), rel=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_it_is_the_best_of_all_candidates_of_small_programs(seed):
    choices, costs = price(chain(np.random.default_rng(seed)))
    everything = costs.seconds(all_candidates(choices.counts))
    assert len(everything) >= 9**3
    assert find_optimum(costs).seconds == pytest.approx(everything.min(), rel=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_drawn_candidate_is_faster(family):
    choices, costs = price(draw_program(family, SCALES["small"].size, np.random.default_rng(3)))
    found = find_optimum(costs)
    drawn = [draw_indices(choices, 500, seed=0, mode=mode, tied=tied) for mode in MODES for tied in (True, False)]
    assert found.is_exact
    assert found.seconds <= costs.seconds(np.concatenate(drawn)).min() * (1 + 1e-12)


def test_a_program_of_full_size_is_exact_too():
    _, costs = price(draw_program("transformer", SCALES["full"].size, np.random.default_rng(0)))
    assert find_optimum(costs).is_exact


@pytest.mark.parametrize("seed", range(10))
def test_without_room_for_tables_it_is_a_local_optimum(seed):
    """No change of one node, and none of two nodes of a pair, is faster; the answer says that it is not exact."""
    rng = np.random.default_rng(seed)
    counts = [4, 3, 2, 4, 3]
    costs = RandomCosts(rng, counts)
    found = find_optimum(costs, max_entries=1)
    assert not found.is_exact
    assert found.seconds == costs.seconds(found.indices[None])[0]
    everything = all_candidates(counts)
    changes = everything != found.indices
    near = changes.sum(axis=1) <= 1
    for pair in costs.tables.pairs:
        near |= changes.sum(axis=1) == changes[:, pair].sum(axis=1)
    assert near.sum() > sum(counts)
    assert found.seconds <= costs.seconds(everything[near]).min() * (1 + 1e-9)


def test_descent_is_deterministic_and_depends_on_its_starts_alone():
    costs = RandomCosts(np.random.default_rng(5), [5] * 8)
    first, again = (find_optimum(costs, max_entries=1, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.indices, again.indices)
    assert first.seconds >= find_optimum(costs).seconds


def test_a_program_without_choices_has_its_constant():
    class Empty(LayoutCosts):
        def __init__(self):
            pass

        tables = CostTables(2.5, [], [], {}, [])

        def seconds(self, choice_ids):
            return np.full(len(choice_ids), 2.5)

    found = find_optimum(Empty())
    assert found.indices.shape == (0,)
    assert found.seconds == 2.5
