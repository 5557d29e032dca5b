"""Ranking losses over the candidates of one graph: masked, tie-aware, and compilable by XLA.

Every loss maps `(runtimes, scores, mask)`, each [graphs, candidates], to float32 [graphs]. A higher score means
predicted faster. The formulas are in terms of the predicted cost p = -score, which rises with the runtime.

- `runtimes` are int64 nanoseconds or floating ratios. They are compared in their own type (a float32 holds integers
  only up to 2^24) and turned to float32 after the graph's minimum has been subtracted.
- `scores` may be float16 or bfloat16; the arithmetic is float32.
- `mask` is bool. Where it is False nothing counts, NaN included.
- Candidates with equal runtimes are never put in an order: no term compares them. A graph without two different
  runtimes has loss 0 and gradient 0.
- Values are means over the graph's pairs or candidates (NDCG is one already), so graphs of all sizes weigh the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import tensorflow as tf

from tpugraphs_polynormer.errors import UserError

# Standard deviation of log(t_1 / t_2) of one candidate measured twice. Real repeats of alexnet: median 2.7e-4.
PAIR_NOISE = 4e-4

Loss = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


def list_mle(runtimes: tf.Tensor, scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Plackett-Luce negative log-likelihood of the true order, per candidate (Xia et al. 2008).

    `mean_i [ p_i + log(exp(-p_i) + sum_{j slower than i} exp(-p_j)) ]`: each candidate must come out first among
    itself and the strictly slower ones. Without ties this is ListMLE divided by the number of candidates.
    """
    costs = _predicted_costs(scores, mask)
    is_rival = tf.linalg.matrix_transpose(_slower_pairs(runtimes, mask))  # [g, i, j]: j is slower than i
    is_rival |= tf.eye(tf.shape(costs)[1], dtype=tf.bool)
    logits = tf.where(is_rival, -costs[:, None, :], -math.inf)
    return _mean(tf.reduce_logsumexp(logits, axis=2) + costs, mask, axis=1)


def list_mle_slowest(runtimes: tf.Tensor, scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """`mean_i [ -p_i + log(exp(p_i) + sum_{j faster than i} exp(p_j)) ]`: the slowest candidate comes first.

    The official baselines train with this likelihood of the reversed order: they rank by runtimes as if by relevance.
    """
    return list_mle(-runtimes, -scores, mask)


def pairwise_hinge(runtimes: tf.Tensor, scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """`max(0, 1 - (p_i - p_j))`, the mean over pairs where i is slower than j."""
    return _mean(tf.nn.relu(1.0 - _differences(_predicted_costs(scores, mask))), _slower_pairs(runtimes, mask))


def pairwise_logistic(runtimes: tf.Tensor, scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """`log(1 + exp(-(p_i - p_j)))`, the mean over pairs where i is slower than j (RankNet, Burges et al. 2005)."""
    return _mean(tf.nn.softplus(-_differences(_predicted_costs(scores, mask))), _slower_pairs(runtimes, mask))


def pairwise_noisy(runtimes: tf.Tensor, scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """`q log(1 + exp(-(p_i - p_j))) + (1 - q) log(1 + exp(p_i - p_j))`, the mean over pairs where i was slower than j.

    q is the probability that i is slower than j, given that two measurements of one candidate differ by a normally
    distributed share of the runtime (PAIR_NOISE): pairs within the noise are pulled together, not into an order.
    """
    differences = _differences(_predicted_costs(scores, mask))
    apart = _differences(_log_slowdown(runtimes, mask)) / (PAIR_NOISE * math.sqrt(2.0))
    is_right = 0.5 * (1.0 + tf.math.erf(apart))
    losses = is_right * tf.nn.softplus(-differences) + (1.0 - is_right) * tf.nn.softplus(differences)
    return _mean(losses, _slower_pairs(runtimes, mask))


def margin(runtimes: tf.Tensor, scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """`max(0, (t_i - t_j) - (p_i - p_j))`, the mean over pairs where i is slower than j.

    The margin of a pair grows with how far apart it is: t is the log-runtime, standardised within the graph.
    """
    missing = _differences(_standardized_log(runtimes, mask)) - _differences(_predicted_costs(scores, mask))
    return _mean(tf.nn.relu(missing), _slower_pairs(runtimes, mask))


def lambda_rank(runtimes: tf.Tensor, scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Logistic pair loss, each pair weighted by how much swapping it would change NDCG (Burges et al. 2006).

    `sum_ij w_ij log(1 + exp(-(p_i - p_j))) / sum_ij w_ij` over pairs where i is slower than j, with
    `w_ij = |g_i - g_j| |d(rank_i) - d(rank_j)|`, gains g as in `approx_ndcg`, d(rank) = 1 / log2(1 + rank), and the
    ranks of the present scores, through which no gradient flows. Tied scores share the mean of their ranks, and a
    graph whose scores are all equal has no weights: it starts with equal ones instead.
    """
    costs = _predicted_costs(scores, mask)
    discounts = _discount(_ranks(tf.stop_gradient(costs), mask))
    weights = tf.abs(_differences(_gains(runtimes, mask))) * tf.abs(_differences(discounts))
    is_slower = _slower_pairs(runtimes, mask)
    weights = tf.where(is_slower, weights, 0.0)
    has_weights = tf.reduce_any(weights > 0.0, axis=(1, 2), keepdims=True)
    weights = tf.where(has_weights, weights, tf.cast(is_slower, tf.float32))
    total = tf.reduce_sum(weights * tf.nn.softplus(-_differences(costs)), axis=(1, 2))
    return tf.math.divide_no_nan(total, tf.reduce_sum(weights, axis=(1, 2)))


def approx_ndcg(runtimes: tf.Tensor, scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """`1 - DCG / idealDCG` with smooth ranks `1 + sum_j sigmoid((p_i - p_j) / 0.1)` (Qin et al. 2010).

    Gains run from 1 for the fastest candidate to 0 for the slowest, linear in the log-runtime.
    """
    costs = _predicted_costs(scores, mask)
    gains = _gains(runtimes, mask)
    is_other = tf.logical_and(_valid_pairs(mask), ~tf.eye(tf.shape(costs)[1], dtype=tf.bool))
    ahead = tf.where(is_other, tf.sigmoid(_differences(costs) / 0.1), 0.0)
    dcg = tf.reduce_sum(gains * _discount(1.0 + tf.reduce_sum(ahead, axis=2)), axis=1)
    ideal = _ideal_dcg(gains)
    return tf.math.divide_no_nan(ideal - dcg, ideal)


def mse(runtimes: tf.Tensor, scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Squared error of p against the log-runtime standardised within the graph, the mean over candidates."""
    errors = tf.math.squared_difference(_predicted_costs(scores, mask), _standardized_log(runtimes, mask))
    is_rankable = tf.reduce_any(_slower_pairs(runtimes, mask), axis=(1, 2))
    return _mean(errors, tf.logical_and(mask, is_rankable[:, None]), axis=1)


LOSSES: dict[str, Loss] = {
    "list_mle": list_mle,
    "list_mle_slowest": list_mle_slowest,
    "pairwise_hinge": pairwise_hinge,
    "pairwise_logistic": pairwise_logistic,
    "pairwise_noisy": pairwise_noisy,
    "margin": margin,
    "lambda_rank": lambda_rank,
    "approx_ndcg": approx_ndcg,
    "mse": mse,
}


def build_loss(weights: Mapping[str, float]) -> Loss:
    """The weighted sum of the named losses; a weight of 0 leaves its loss out."""
    for name, weight in weights.items():
        if name not in LOSSES:
            raise UserError(f"unknown loss {name!r}; choose from {', '.join(LOSSES)}")
        if not (math.isfinite(weight) and weight >= 0):
            raise UserError(f"weight of loss {name!r} is {weight}, expected a finite number of at least 0")
    terms = [(LOSSES[name], float(weight)) for name, weight in weights.items() if weight > 0]
    if not terms:
        raise UserError(f"no loss has a positive weight; give one of {', '.join(LOSSES)} a weight such as 1.0")

    def weighted_sum(runtimes: tf.Tensor, scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        return tf.add_n([weight * loss(runtimes, scores, mask) for loss, weight in terms])

    return weighted_sum


def _predicted_costs(scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """float32 negated scores, 0 where masked: a NaN there would survive a multiplication by 0."""
    return tf.where(mask, -tf.cast(scores, tf.float32), 0.0)


def _differences(values: tf.Tensor) -> tf.Tensor:
    """[g, c] -> [g, i, j]: v_i - v_j."""
    return values[:, :, None] - values[:, None, :]


def _valid_pairs(mask: tf.Tensor) -> tf.Tensor:
    return tf.logical_and(mask[:, :, None], mask[:, None, :])


def _slower_pairs(runtimes: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """bool [g, i, j]: both count, and i is truly slower than j; compared exactly, in the runtimes' own type."""
    return tf.logical_and(_valid_pairs(mask), runtimes[:, :, None] > runtimes[:, None, :])


def _mean(values: tf.Tensor, where: tf.Tensor, axis: int | tuple[int, ...] = (1, 2)) -> tf.Tensor:
    """Mean of the values where `where` holds; 0 if it holds nowhere."""
    total = tf.reduce_sum(tf.where(where, values, 0.0), axis=axis)
    return tf.math.divide_no_nan(total, tf.reduce_sum(tf.cast(where, tf.float32), axis=axis))


def _log_slowdown(runtimes: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """float32 [g, c]: log(runtime / fastest), 0 where masked; exact to float32 however large the runtimes are."""
    fastest = tf.reduce_min(tf.where(mask, runtimes, runtimes.dtype.max), axis=1, keepdims=True)
    excess = tf.cast(tf.where(mask, runtimes - fastest, 0), tf.float32)
    return tf.math.log1p(tf.math.divide_no_nan(excess, tf.cast(fastest, tf.float32)))


def _standardized_log(runtimes: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """float32 [g, c]: log-runtime with mean 0 and standard deviation 1 over the unmasked; 0 if all are equal."""
    logs = _log_slowdown(runtimes, mask)
    centred = logs - _mean(logs, mask, axis=1)[:, None]
    deviation = tf.sqrt(_mean(tf.square(centred), mask, axis=1))
    return tf.where(mask, tf.math.divide_no_nan(centred, deviation[:, None]), 0.0)


def _gains(runtimes: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """float32 [g, c]: 1 for the fastest to 0 for the slowest; 0 where masked and where all are equal."""
    logs = _log_slowdown(runtimes, mask)
    slowest = tf.reduce_max(logs, axis=1, keepdims=True)
    return tf.where(mask, tf.math.divide_no_nan(slowest - logs, slowest), 0.0)


def _discount(ranks: tf.Tensor) -> tf.Tensor:
    """1 / log2(1 + rank), ranks from 1."""
    return math.log(2.0) / tf.math.log1p(ranks)


def _ranks(costs: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """float32 [g, c]: rank from 1 by ascending cost; equal costs share the middle of their ranks."""
    differences = tf.where(_valid_pairs(mask), 0.5 + 0.5 * tf.sign(_differences(costs)), 0.0)
    return 0.5 + tf.reduce_sum(differences, axis=2)


def _ideal_dcg(gains: tf.Tensor) -> tf.Tensor:
    """[g]: the DCG of the true order; masked candidates have gain 0 and add nothing wherever they land."""
    ideal = tf.sort(gains, axis=1, direction="DESCENDING")
    return tf.reduce_sum(ideal * _discount(tf.cumsum(tf.ones_like(gains), axis=1)), axis=1)
