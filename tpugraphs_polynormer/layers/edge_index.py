"""The edge structure that every layer consumes: target-sorted edges, with the source-sorted order beside them.

Edges are sorted once per graph, not once per layer. The forward pass reads them by target; the backward pass reads them
by source, except where it is a transposed product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tpugraphs_polynormer.layers.neighbours import PlainRows
from tpugraphs_polynormer.layers.ops.aggregation import aggregate, degrees
from tpugraphs_polynormer.layers.ops.attention import attend, merge_columns


class _EdgeFields(NamedTuple):
    source: tf.Tensor | np.ndarray  # [num_edges], in target-sorted order
    target: tf.Tensor | np.ndarray  # [num_edges], non-decreasing
    source_order: tf.Tensor | np.ndarray  # [num_edges], source[source_order] is non-decreasing
    target_offsets: tf.Tensor | np.ndarray  # [num_nodes + 1], node i receives edges target_offsets[i:i+2]
    source_offsets: tf.Tensor | np.ndarray  # [num_nodes + 1], the same for source[source_order]
    mask: tf.Tensor | np.ndarray | None = None  # [num_edges] bool


class EdgeIndex(PlainRows, _EdgeFields):
    """Directed edges `source -> target` among `num_nodes` nodes, all int32 but the mask; numpy arrays or tensors.

    Padding edges join padding nodes and have `mask` False; `mask` None means that every edge is real.

    Example:
      >>> edges = tp.build_undirected_edge_index([0, 1], [1, 2], num_nodes=3)
      >>> edges.source.tolist(), edges.target.tolist()  # both ways, and a loop at each node
      ([0, 1, 0, 1, 2, 1, 2], [0, 0, 1, 1, 1, 2, 2])
      >>> edges.aggregate(tf.constant([[1.0], [2.0], [4.0]]), how="sum").numpy()[:, 0].tolist()
      [3.0, 7.0, 6.0]
    """

    __slots__ = ()

    @property
    def num_nodes(self) -> int | tf.Tensor:
        """Static where the shape is known, else a scalar tensor."""
        static = self.target_offsets.shape[0]
        return static - 1 if static is not None else tf.shape(self.target_offsets)[0] - 1

    def as_tensors(self) -> EdgeIndex:
        """The same edges with every field a tensor (the mask may stay None)."""
        return EdgeIndex(*(None if field is None else tf.convert_to_tensor(field) for field in self))

    def reversed(self) -> EdgeIndex:
        """The edges target -> source, again sorted by their new target."""
        order = self.source_order
        return EdgeIndex(
            source=tf.gather(self.target, order),
            target=tf.gather(self.source, order),
            source_order=invert_order(order),
            target_offsets=self.source_offsets,
            source_offsets=self.target_offsets,
            mask=None if self.mask is None else tf.gather(self.mask, order),
        )

    def into(self, first: int, last: int) -> TargetRange:
        """The edges into the nodes first, ..., last - 1."""
        offsets = self.target_offsets[first : last + 1]
        along = slice(offsets[0], offsets[-1])
        unused = self.source_order[:0]  # only gradients read the order by source
        edges = EdgeIndex(
            source=self.source[along],
            target=self.target[along] - first,
            source_order=unused,
            target_offsets=offsets - offsets[0],
            source_offsets=unused,
            mask=None if self.mask is None else self.mask[along],
        )
        return TargetRange(edges, first, last, degrees(self))

    # Neighbours: every layer reads the same edges, and a row is a node.

    def aggregate(self, values: tf.Tensor, *, how: str, formulation: str = "auto") -> tf.Tensor:
        """See layers/ops/aggregation.py."""
        return aggregate(values, self, how=how, formulation=formulation)

    def attend(
        self, source_logits: tf.Tensor, target_logits: tf.Tensor, values: tf.Tensor, *, formulation: str = "auto"
    ) -> tf.Tensor:
        """See layers/ops/attention.py; a (candidate, head) pair is one column there: candidates cost no loop."""
        attended = attend(*merge_columns(source_logits, target_logits, values), self, formulation=formulation)
        return tf.reshape(attended, tf.concat([tf.shape(attended)[:1], tf.shape(values)[1:]], 0))

    def degrees(self) -> tf.Tensor:
        """[num_nodes, 1] float32: the number of real incoming edges."""
        return degrees(self)


class TargetRange(NamedTuple):
    """The edges from all nodes into a range of nodes: input rows are all nodes, output rows those of the range.

    Full-graph evaluation in chunks passes it to a layer's `aggregate`. It has no gradient.
    """

    edges: EdgeIndex  # sources count from node 0, targets from `first`
    first: int
    last: int
    all_degrees: tf.Tensor  # [num_nodes, 1], of all nodes

    def aggregate(self, values: tf.Tensor, *, how: str, formulation: str = "auto") -> tf.Tensor:
        """As EdgeIndex.aggregate, for the range."""
        return aggregate(values, self.edges, how=how, formulation=formulation, source_degrees=self.all_degrees)

    def attend(
        self, source_logits: tf.Tensor, target_logits: tf.Tensor, values: tf.Tensor, *, formulation: str = "auto"
    ) -> tf.Tensor:
        """As EdgeIndex.attend, for the range."""
        return self.edges.attend(source_logits, self.expand(target_logits), values, formulation=formulation)

    def expand(self, rows: tf.Tensor) -> tf.Tensor:
        """The rows of the range."""
        return rows[self.first : self.last]


def as_neighbours(near: Any) -> Any:
    """`near` itself, or the EdgeIndex of its fields: Keras restores a saved functional model's arguments as lists."""
    return near if hasattr(near, "_fields") or not isinstance(near, list | tuple) else EdgeIndex(*near)


def build_edge_inputs() -> EdgeIndex:
    """Symbolic edges of a functional Keras model: one `tf.keras.Input` for each field, without a mask."""
    return EdgeIndex(*(tf.keras.Input([], dtype=tf.int32, name=name) for name in EdgeIndex._fields[:-1]))


def unknown_edges() -> list[tf.TensorSpec]:
    """The specs of all fields but the mask, for a trace that serves graphs of any size."""
    return [tf.TensorSpec([None], tf.int32)] * len(EdgeIndex._fields[:-1])


def build_edge_index(
    source: np.ndarray, target: np.ndarray, num_nodes: int, *, mask: np.ndarray | None = None
) -> EdgeIndex:
    """Sorts edges by (target, source), in numpy. Raises ValueError for node ids outside [0, num_nodes)."""
    source, target = np.asarray(source), np.asarray(target)
    _check_ids(source, target, num_nodes)
    order = np.lexsort((source, target))
    source, target = source[order].astype(np.int32), target[order].astype(np.int32)
    source_order = np.argsort(source, kind="stable").astype(np.int32)
    return EdgeIndex(
        source=source,
        target=target,
        source_order=source_order,
        target_offsets=_offsets(target, num_nodes),
        source_offsets=_offsets(source, num_nodes),
        mask=None if mask is None else np.asarray(mask, bool)[order],
    )


def build_undirected_edge_index(source: np.ndarray, target: np.ndarray, num_nodes: int) -> EdgeIndex:
    """The usual treatment: both directions, no duplicates, exactly one self-loop per node."""
    source, target = np.asarray(source, np.int64), np.asarray(target, np.int64)
    _check_ids(source, target, num_nodes)
    loops = np.arange(num_nodes, dtype=np.int64)
    keys = np.concatenate([target * num_nodes + source, source * num_nodes + target, loops * num_nodes + loops])
    keys = np.unique(keys)
    return build_edge_index(keys % num_nodes, keys // num_nodes, num_nodes)


def pad_edge_index(edges: EdgeIndex, *, num_nodes: int, num_edges: int) -> EdgeIndex:
    """Pads numpy edges to `num_nodes` and `num_edges` with masked self-loops of the last (padding) node."""
    num_padding = num_edges - len(edges.source)
    if num_padding < 0 or num_nodes < edges.num_nodes or (num_padding and num_nodes == edges.num_nodes):
        raise ValueError(
            f"cannot pad {edges.num_nodes} nodes and {len(edges.source)} edges to {num_nodes} nodes and {num_edges} "
            "edges: sizes may only grow, and padding edges need at least one padding node; raise the sizes"
        )
    padding = np.full(num_padding, num_nodes - 1, np.int32)
    mask = np.ones(len(edges.source), bool) if edges.mask is None else edges.mask
    return build_edge_index(
        np.concatenate([edges.source, padding]),
        np.concatenate([edges.target, padding]),
        num_nodes,
        mask=np.concatenate([mask, np.zeros(num_padding, bool)]),
    )


def build_undirected_edge_tensors(
    source: tf.Tensor, target: tf.Tensor, num_nodes: int | tf.Tensor, *, mask: tf.Tensor | None = None
) -> EdgeIndex:
    """`build_undirected_edge_index` with static shapes: 2 * num_edges + num_nodes edges, duplicates masked.

    TensorFlow ops that also compile under XLA; ids are not checked.
    """
    source, target = tf.cast(source, tf.int32), tf.cast(target, tf.int32)
    loops, num_given = tf.range(num_nodes, dtype=tf.int32), tf.shape(source)[0]
    both = tf.concat([source, target, loops], 0), tf.concat([target, source, loops], 0)
    order = lexicographic_order(*both, num_nodes)
    position = invert_order(order)
    # The set of edges equals its reverse, so an edge's position by source is the position of its reverse by target.
    given, back = tf.range(num_given), tf.range(num_given, 2 * num_given)
    returning = tf.gather(tf.gather(position, tf.concat([back, given, 2 * num_given + loops], 0)), order)
    source, target = (tf.gather(ids, order) for ids in both)
    splits = count_offsets(target, num_nodes)
    same = (source[1:] == source[:-1]) & (target[1:] == target[:-1])
    # Among equal edges one real one must survive. Padding joins padding nodes only, so equal edges are all real or, on
    # padding nodes, their mask does not matter: keeping the first is enough.
    keep = tf.concat([tf.ones_like(source[:1], tf.bool), ~same], 0)
    if mask is not None:
        keep &= tf.gather(tf.concat([mask, mask, tf.ones_like(loops, tf.bool)], 0), order)
    return EdgeIndex(
        source=source,
        target=target,
        source_order=returning,
        target_offsets=splits,
        source_offsets=splits,
        mask=keep,
    )


def renumber_edges(edges: EdgeIndex, order: tf.Tensor, position: tf.Tensor) -> EdgeIndex:
    """The edges when node order[i] becomes node i = position[order[i]]: runs of edges are moved, nothing is sorted."""
    target, moved, target_offsets = _move_runs(edges.target_offsets, order)
    _, by_source, source_offsets = _move_runs(edges.source_offsets, order)
    source_order = tf.gather(invert_order(moved), tf.gather(edges.source_order, by_source))
    return EdgeIndex(
        source=tf.gather(position, tf.gather(edges.source, moved)),
        target=target,
        source_order=source_order,
        target_offsets=target_offsets,
        source_offsets=source_offsets,
        mask=None if edges.mask is None else tf.gather(edges.mask, moved),
    )


def select_edges(
    edges: EdgeIndex,
    keep: tf.Tensor,
    *,
    sources: tuple[int | tf.Tensor, int | tf.Tensor] | None = None,
    targets: tuple[int | tf.Tensor, int | tf.Tensor] | None = None,
) -> EdgeIndex:
    """The edges where `keep` [num_edges] is True, from one range [start, stop) of nodes to another (None: all nodes).

    Ids count from the start of each range, so the result is square only if the ranges are equal: an aggregation takes
    values of the sources and gives values of the targets. Shapes depend on `keep`, so this does not compile under XLA.
    """
    edges = edges.as_tensors()
    chosen = tf.where(keep)[:, 0]
    number = tf.cumsum(tf.cast(keep, tf.int32), exclusive=True)
    by_source = tf.gather(edges.source_order, tf.where(tf.gather(keep, edges.source_order))[:, 0])
    order = tf.gather(number, by_source)
    first_source, last_source = sources or (0, edges.num_nodes)
    first_target, last_target = targets or (0, edges.num_nodes)
    source = tf.gather(edges.source, chosen) - first_source
    target = tf.gather(edges.target, chosen) - first_target
    return EdgeIndex(
        source=source,
        target=target,
        source_order=order,
        target_offsets=count_offsets(target, last_target - first_target),
        source_offsets=count_offsets(source, last_source - first_source),
        mask=None if edges.mask is None else tf.gather(edges.mask, chosen),
    )


def _check_ids(source: np.ndarray, target: np.ndarray, num_nodes: int) -> None:
    if source.shape != target.shape or source.ndim != 1:
        raise ValueError(f"edges need two equally long lists of node ids, got shapes {source.shape} and {target.shape}")
    for name, ids in (("source", source), ("target", target)):
        if ids.size and not (ids.min() >= 0 and ids.max() < num_nodes):
            raise ValueError(
                f"edge {name} ids run from {ids.min()} to {ids.max()}, but there are {num_nodes} nodes: "
                f"expected ids in [0, {num_nodes})"
            )


def _offsets(sorted_ids: np.ndarray, num_nodes: int) -> np.ndarray:
    counts = np.bincount(sorted_ids, minlength=num_nodes)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def count_offsets(ids: tf.Tensor, num_nodes: int | tf.Tensor) -> tf.Tensor:
    """[num_nodes + 1]: where each node's run begins in the sorted ids."""
    counts = tf.math.unsorted_segment_sum(tf.ones_like(ids), ids, num_nodes)
    return tf.pad(tf.cumsum(counts), [[1, 0]])


def invert_order(order: tf.Tensor) -> tf.Tensor:
    """The inverse of a permutation, by a scatter, which is cheaper than a sort and compiles under XLA."""
    return tf.scatter_nd(order[:, tf.newaxis], tf.range(tf.shape(order)[0]), tf.shape(order))


def repeat_each(counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Each i counts[i] times: [sum] numbers i, and which time. (tf.repeat builds [length, highest count].)"""
    ends = tf.cumsum(counts)
    total = tf.reduce_sum(counts)
    begins = tf.where(ends < total, ends, -1)  # of the next number; -1 is counted nowhere
    number = tf.cumsum(tf.math.unsorted_segment_sum(tf.ones_like(begins), begins, total))
    return number, tf.range(total) - tf.gather(ends - counts, number)


def _move_runs(splits: tf.Tensor, order: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Entries that are grouped by node, in another order of the nodes: new nodes, old positions, new offsets."""
    counts = tf.gather(splits[1:] - splits[:-1], order)
    node, within = repeat_each(counts)
    return node, tf.gather(tf.gather(splits, order), node) + within, tf.pad(tf.cumsum(counts), [[1, 0]])


def lexicographic_order(source: tf.Tensor, target: tf.Tensor, num_nodes: int | tf.Tensor) -> tf.Tensor:
    """By target, then source: one sort of one number per edge, or two where it does not fit what a TPU sorts."""
    if tf.is_tensor(num_nodes):  # never under XLA, whose sizes are known
        key = tf.cast(target, tf.int64) * tf.cast(num_nodes, tf.int64) + tf.cast(source, tf.int64)
        return tf.argsort(key, stable=True)
    if num_nodes**2 <= tf.int32.max:
        return tf.argsort(target * num_nodes + source, stable=True)
    by_source = tf.argsort(source, stable=True)
    return tf.gather(by_source, tf.argsort(tf.gather(target, by_source), stable=True))
