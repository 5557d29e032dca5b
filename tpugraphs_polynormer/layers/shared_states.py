"""Early fusion without the waste: a node that no candidate has reached yet has one state, not one per candidate.

Nodes are put in the order of their hops from the config nodes. Before the first layer only the config nodes differ
between candidates; each layer lets the difference travel one hop. So the nodes that vary are always a prefix of the
order, and the states of p varying nodes and n - p shared ones are kept as the rows of one matrix

    [p * candidates + n - p, dim]: one row per candidate for each varying node, then one row for each shared node.

What works row by row (dense layers, norms, activations) needs no change. What mixes nodes goes through the methods of
`Neighbours` (see neighbours.py), and global attention reads the two parts one after the other. Scores and gradients are
those of the naive computation on [n, candidates, dim]. (Dropout draws one mask for a shared row: candidates see the
same noise there.)

The sizes of the prefixes depend on the data, so XLA cannot compile this: under XLA RankingModel computes naively.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import NamedTuple

import tensorflow as tf

from tpugraphs_polynormer.layers.directed_edges import DirectedEdges, map_directions
from tpugraphs_polynormer.layers.edge_index import (
    EdgeIndex,
    count_offsets,
    invert_order,
    renumber_edges,
    repeat_each,
    select_edges,
)
from tpugraphs_polynormer.layers.neighbours import Graphs
from tpugraphs_polynormer.layers.ops.aggregation import inverse_degree, sum_edges


@dataclass(frozen=True)
class SharedStep:
    """One layer's step: `before` nodes vary in its input, `after` in its output. Node ids are positions in order."""

    edges: EdgeIndex | DirectedEdges  # among all nodes, without masked ones; with directions only `along` and `against`
    num_candidates: int | tf.Tensor
    before: tf.Tensor
    after: tf.Tensor
    node_mask: tf.Tensor  # [num_nodes] bool

    @property
    def along(self) -> SharedStep:
        """The same step on the edges along the flow of data."""
        return replace(self, edges=self.edges.along)

    @property
    def against(self) -> SharedStep:
        """The same step on the edges against the flow of data."""
        return replace(self, edges=self.edges.against)

    def cut(self, rows: tf.Tensor, num_nodes: tf.Tensor) -> list[tf.Tensor]:
        """Rows of the input: of varying nodes, of the shared ones among the first `num_nodes`, of the others.

        A split, not slices: its gradient is one concatenation, that of each slice an array as large as the rows.
        """
        num_rows, first = tf.shape(rows)[0], self.before * self.num_candidates
        near = num_nodes - self.before
        return tf.split(rows, tf.stack([first, near, num_rows - first - near]), axis=0, num=3)

    def expand(self, rows: tf.Tensor) -> tf.Tensor:
        """Rows of the layer's input -> rows of its output: nodes that begin to vary get a copy per candidate."""
        varying, begin, shared = self.cut(rows, self.after)
        return tf.concat([varying, tf.repeat(begin, self.num_candidates, axis=0), shared], 0)

    def add_first(self, rows: tf.Tensor, added: tf.Tensor) -> tf.Tensor:
        """Rows of the input plus [first nodes, candidates, dim] at the front."""
        added = tf.reshape(added, [-1, added.shape[-1]])
        first, others = split_at(rows, tf.shape(added)[0])
        return tf.concat([first + added, others], 0)

    def connect_rows(self) -> EdgeIndex:
        """The edges among rows: from rows of the input to rows of the output.

        An edge into a node that varies occurs once for each candidate, from the source's row of that candidate or from
        its only row; an edge into a shared node occurs once. Both orders follow from those of `edges`: no sort.
        """
        edges, k, before, after = self.edges, self.num_candidates, self.before, self.after
        counts = edges.target_offsets[1:] - edges.target_offsets[:-1]
        num_into_varying = edges.target_offsets[after]

        def position(edge: tf.Tensor, candidate: tf.Tensor) -> tf.Tensor:
            """The index of an edge (of a candidate): by target, then candidate, then as in `edges`."""
            target = tf.gather(edges.target, edge)
            first = tf.gather(edges.target_offsets, target)
            in_varying = k * first + candidate * tf.gather(counts, target) + edge - first
            return tf.where(target < after, in_varying, edge + (k - 1) * num_into_varying)

        into_varying, candidate = _for_each_candidate(edges.target[:num_into_varying], edges.target_offsets, k)
        source = tf.gather(edges.source, into_varying)
        source = tf.concat(
            [
                tf.where(source < before, source * k + candidate, source + (k - 1) * before),
                edges.source[num_into_varying:] + (k - 1) * before,
            ],
            0,
        )
        target = tf.repeat(edges.target[:num_into_varying], k) * k + candidate
        target = tf.concat([target, edges.target[num_into_varying:] + (k - 1) * after], 0)

        by_source = edges.source_order
        num_from_varying = edges.source_offsets[before]
        sources = tf.gather(edges.source, by_source[:num_from_varying])
        from_varying, of_candidate = _for_each_candidate(sources, edges.source_offsets, k)
        from_shared = by_source[num_from_varying:]
        copies = tf.where(tf.gather(edges.target, from_shared) < after, k, 1)
        number, of_copy = repeat_each(copies)
        order = tf.concat(
            [
                position(tf.gather(by_source, from_varying), of_candidate),
                position(tf.gather(from_shared, number), of_copy),
            ],
            0,
        )
        into_row = k * edges.target_offsets[:after, tf.newaxis] + counts[:after, tf.newaxis] * tf.range(k)
        into_shared = edges.target_offsets[after:] + (k - 1) * num_into_varying
        return EdgeIndex(
            source=source,
            target=target,
            source_order=order,
            target_offsets=tf.concat([tf.reshape(into_row, [-1]), into_shared], 0),
            source_offsets=count_offsets(source, edges.num_nodes + (k - 1) * before),
        )

    def row_weights(self, mask: tf.Tensor | None) -> tf.Tensor:
        """[rows of the output]: how often each row counts in the naive [n, candidates, dim]; 0 for padding.

        The mask of the reach counts, because `mask` is in another order.
        """
        real = tf.cast(self.node_mask, tf.float32)
        varying = tf.repeat(real[: self.after], self.num_candidates)
        return tf.concat([varying, real[self.after :] * tf.cast(self.num_candidates, tf.float32)], 0)

    def aggregate(self, values: tf.Tensor, *, how: str, formulation: str = "auto") -> tf.Tensor:
        """Rows of the input [rows, dim] -> rows of the output.

        A sum splits: varying neighbours are added up per candidate, shared ones once, for all targets together.
        """
        inverse = inverse_degree(self.edges)
        if how == "gcn":
            values *= tf.cast(_row_values(tf.sqrt(inverse), self.before, self.num_candidates), values.dtype)
        dim, edges = values.shape[-1], self.edges
        varying, _, shared = self.cut(values, self.before)
        varying = tf.reshape(varying, [self.before, self.num_candidates * dim])
        from_varying = select_edges(
            edges, edges.source < self.before, sources=(0, self.before), targets=(0, self.after)
        )
        from_shared = select_edges(edges, edges.source >= self.before, sources=(self.before, edges.num_nodes))
        varying = sum_edges(varying, from_varying, formulation=formulation)
        shared = sum_edges(shared, from_shared, formulation=formulation)  # [num_nodes, dim]
        begin, shared = split_at(shared, self.after)
        varying = tf.reshape(varying, [self.after, self.num_candidates, dim]) + begin[:, tf.newaxis]
        summed = tf.concat([tf.reshape(varying, [-1, dim]), shared], 0)
        if how == "sum":
            return summed
        scale = tf.sqrt(inverse) if how == "gcn" else inverse
        return summed * tf.cast(_row_values(scale, self.after, self.num_candidates), values.dtype)

    def attend(
        self, source_logits: tf.Tensor, target_logits: tf.Tensor, values: tf.Tensor, *, formulation: str = "auto"
    ) -> tf.Tensor:
        """Logits [input rows, heads], values [input rows, heads, dim] -> [output rows, heads, dim].

        A node that varies weighs all its neighbours by candidate; one that does not has shared neighbours only.
        """
        edges = self.connect_rows()
        return edges.attend(source_logits, self.expand(target_logits), values, formulation=formulation)


class Reach(NamedTuple):
    """How far candidates can make a difference: a batch's nodes by hops from the configurable ones, for any candidates.

    All but `order` and `position` is in that order.
    """

    edges: EdgeIndex | DirectedEdges  # without masked ones
    order: tf.Tensor  # [num_nodes], which node comes where
    position: tf.Tensor  # [num_nodes], the index of each node in the order
    sizes: tuple[tf.Tensor, ...]  # nodes within 0, 1, ..., num_hops hops
    graph_ids: tf.Tensor  # [num_nodes] int32
    node_mask: tf.Tensor  # [num_nodes] bool


@dataclass(frozen=True)
class SharedStates:
    """The rows that `num_candidates` candidates make of a Reach."""

    reach: Reach
    num_candidates: int | tf.Tensor

    @property
    def num_varying(self) -> tf.Tensor:
        """Nodes that vary after the last layer."""
        return self.reach.sizes[-1]

    def steps(self, num_layers: int) -> list[SharedStep]:
        """The steps of `num_layers` layers; after `num_hops` of them nothing spreads (layers without edges)."""
        sizes = (*self.reach.sizes, *self.reach.sizes[-1:] * num_layers)[: num_layers + 1]
        return [
            SharedStep(
                edges=self.reach.edges,
                num_candidates=self.num_candidates,
                before=before,
                after=after,
                node_mask=self.reach.node_mask,
            )
            for before, after in itertools.pairwise(sizes)
        ]

    def parts(self, rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """The last rows as [num_varying, candidates, dim] and [num_nodes - num_varying, 1, dim]."""
        varying, shared = split_at(rows, self.num_varying * self.num_candidates)
        return tf.reshape(varying, [-1, self.num_candidates, rows.shape[-1]]), shared[:, tf.newaxis]

    def part_graphs(self, graphs: Graphs) -> tuple[Graphs, ...]:
        """The graphs of both parts; each part is in the order of the reach."""
        ids, masks = self.split_nodes(self.reach.graph_ids), self.split_nodes(self.reach.node_mask)
        return tuple(Graphs(*part, is_sorted=False) for part in zip(ids, [graphs.count] * 2, masks, strict=True))

    def join(self, parts: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        """Both parts."""
        return parts

    def split_nodes(self, per_node: tf.Tensor) -> list[tf.Tensor]:
        """[num_nodes, ...] in the order of the reach, split as `parts` does."""
        return split_at(per_node, self.num_varying)


def find_reach(edges: EdgeIndex | DirectedEdges, starts: tf.Tensor, *, num_hops: int, graphs: Graphs) -> Reach:
    """The reach of a batch's candidates.

    Args:
      edges: both ways, as the layers use them; with or without directions.
      starts: [num_nodes] bool, the nodes that candidates differ in before the first layer.
      num_hops: how many layers look at neighbours.
      graphs: of the nodes, with a mask.
    """
    edges = map_directions(_drop_masked, edges)
    both = edges.both if isinstance(edges, DirectedEdges) else edges
    hops = count_hops(both.source, both.target, starts, num_hops)
    rings = [tf.where(hops == hop)[:, 0] for hop in range(num_hops + 2)]  # the last is never reached
    order = tf.cast(tf.concat(rings, 0), tf.int32)
    position = invert_order(order)
    return Reach(
        edges=map_directions(lambda each: renumber_edges(each, order, position), edges),
        order=order,
        position=position,
        sizes=tuple(itertools.accumulate(tf.shape(ring)[0] for ring in rings[:-1])),
        graph_ids=tf.gather(graphs.ids, order),
        node_mask=tf.gather(graphs.mask, order),
    )


def _drop_masked(edges: EdgeIndex) -> EdgeIndex:
    return edges if edges.mask is None else select_edges(edges, edges.mask)._replace(mask=None)


def split_at(rows: tf.Tensor, count: tf.Tensor | int) -> list[tf.Tensor]:
    """The first `count` rows, and the others. (A slice's gradient would be an array as large as the rows.)"""
    return tf.split(rows, tf.stack([count, tf.shape(rows)[0] - count]), num=2)


def count_hops(source: tf.Tensor, target: tf.Tensor, starts: tf.Tensor, most: int) -> tf.Tensor:
    """[num_nodes] int32: edges on the shortest way from a start; most + 1 where it is longer."""
    reached = tf.cast(starts, tf.int32)
    hops = 1 - reached
    for _ in range(most):
        arrived = tf.math.unsorted_segment_max(tf.gather(reached, source), target, tf.shape(starts)[0])
        reached = tf.maximum(reached, arrived)
        hops += 1 - reached
    return hops


def _for_each_candidate(nodes: tf.Tensor, splits: tf.Tensor, k: int | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A list sorted by node, each node's run repeated k times: (position in the list, candidate), [k * length] each.

    Args:
      nodes: [length], the node of each entry. splits: [num_nodes + 1], where the runs begin.
    """
    nodes = tf.repeat(nodes, k)  # a node's run is k times as long, but holds the same node
    first = tf.gather(splits, nodes)
    length = tf.gather(splits, nodes + 1) - first
    within = tf.range(tf.shape(nodes)[0]) - k * first
    return first + within % length, within // length


def _row_values(per_node: tf.Tensor, num_varying: tf.Tensor, num_candidates: int | tf.Tensor) -> tf.Tensor:
    """[num_nodes, 1] -> [rows, 1]."""
    return tf.concat([tf.repeat(per_node[:num_varying], num_candidates, axis=0), per_node[num_varying:]], 0)
