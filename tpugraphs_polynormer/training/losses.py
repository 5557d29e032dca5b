"""Ranking losses over the candidates of a graph, with masks and ties, without dynamic shapes (XLA can compile them).

Every loss maps `(runtimes, scores, mask)`, each [graphs, candidates], to float32 [graphs]. A candidate with a higher
score is predicted to be faster. The formulas use the predicted cost p = -score, which increases with the runtime.

- `runtimes` are int64 nanoseconds or floating-point ratios. They are compared in their own dtype (float32 represents
  integers exactly only up to 2^24), and converted to float32 after the graph's minimum is subtracted.
- `scores` may be float16 or bfloat16; the arithmetic is float32.
- `mask` is bool. Candidates where it is False have no influence, even if their values are NaN.
- No term compares candidates with equal runtimes. A graph without two different runtimes has loss 0 and gradient 0.
- A loss is a mean over the graph's pairs or candidates (NDCG is normalized already), so that the size of a graph does
  not change its weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import tensorflow as tf

from tpugraphs_polynormer.errors import UserError

# Standard deviation of log(t_1 / t_2) of one candidate measured twice. Real repeats of alexnet: median 2.7e-4.
PAIR_NOISE = 4e-4

_LEAST_DEVIATION = 1e-4  # of scores that are spread

Loss = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


def list_mle(runtimes: tf.Tensor, scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Plackett-Luce negative log-likelihood of the true order, divided by the number of candidates (Xia et al. 2008).

    `mean_i [ p_i + log(exp(-p_i) + sum_{j slower than i} exp(-p_j)) ]`: the negative log-probability that candidate i
    is chosen first among itself and the strictly slower candidates.
    """
    costs = _predicted_costs(scores, mask)
    is_rival = tf.linalg.matrix_transpose(_slower_pairs(runtimes, mask))  # [g, i, j]: j is slower than i
    is_rival |= tf.eye(tf.shape(costs)[1], dtype=tf.bool)
    logits = tf.where(is_rival, -costs[:, None, :], -math.inf)
    return _mean(tf.reduce_logsumexp(logits, axis=2) + costs, mask, axis=1)


def list_mle_slowest(runtimes: tf.Tensor, scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Plackett-Luce negative log-likelihood of the reversed order, slowest first, divided by the number of candidates.

    `mean_i [ -p_i + log(exp(p_i) + sum_{j faster than i} exp(p_j)) ]`. The official TpuGraphs baselines train with this
    loss: they pass runtimes to ListMLE as relevance labels.
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

    q is the probability that i is slower than j, if the logarithms of two measurements of one candidate differ by a
    normal variable of standard deviation PAIR_NOISE. For pairs within the noise q is near 1/2, and the loss is smallest
    for equal scores.
    """
    differences = _differences(_predicted_costs(scores, mask))
    apart = _differences(_log_slowdown(runtimes, mask)) / (PAIR_NOISE * math.sqrt(2.0))
    is_right = 0.5 * (1.0 + tf.math.erf(apart))
    losses = is_right * tf.nn.softplus(-differences) + (1.0 - is_right) * tf.nn.softplus(differences)
    return _mean(losses, _slower_pairs(runtimes, mask))


def margin(runtimes: tf.Tensor, scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """`max(0, (t_i - t_j) - (p_i - p_j))`, the mean over pairs where i is slower than j.

    t is the log-runtime, standardized within the graph, so that the margin of a pair grows with its difference.
    """
    missing = _differences(_standardized_log(runtimes, mask)) - _differences(_predicted_costs(scores, mask))
    return _mean(tf.nn.relu(missing), _slower_pairs(runtimes, mask))


def lambda_rank(runtimes: tf.Tensor, scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Logistic pair loss weighted by the change of NDCG if the pair were swapped (Burges et al. 2006).

    `sum_ij w_ij log(1 + exp(-(p_i - p_j))) / sum_ij w_ij` over pairs where i is slower than j, with
    `w_ij = |g_i - g_j| |d(rank_i) - d(rank_j)|`, gains g as in `approx_ndcg` and d(rank) = 1 / log2(1 + rank). Ranks
    are those of the current scores, without a gradient; equal scores share the mean of their ranks. If all weights of
    a graph are 0, as with equal scores at the start of training, every pair has weight 1.
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

    The gain of a candidate is linear in its log-runtime: 1 for the fastest candidate, 0 for the slowest.
    """
    costs = _predicted_costs(scores, mask)
    gains = _gains(runtimes, mask)
    is_other = tf.logical_and(_valid_pairs(mask), ~tf.eye(tf.shape(costs)[1], dtype=tf.bool))
    ahead = tf.where(is_other, tf.sigmoid(_differences(costs) / 0.1), 0.0)
    dcg = tf.reduce_sum(gains * _discount(1.0 + tf.reduce_sum(ahead, axis=2)), axis=1)
    ideal = _ideal_dcg(gains)
    return tf.math.divide_no_nan(ideal - dcg, ideal)


def mse(runtimes: tf.Tensor, scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Squared error of p against the log-runtime standardized within the graph, the mean over candidates."""
    errors = tf.math.squared_difference(_predicted_costs(scores, mask), _standardized_log(runtimes, mask))
    is_rankable = tf.reduce_any(_slower_pairs(runtimes, mask), axis=(1, 2))
    return _mean(errors, tf.logical_and(mask, is_rankable[:, None]), axis=1)


def relative_error(runtimes: tf.Tensor, scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """`|f(p_j - p_i) - t_j / t_i|`, the mean over pairs where i is slower than j; t is the runtime.

    `f(x) = exp(x)` for x <= 0, and its tangent `1 + x` beyond, so that a wrong order costs linearly. The predicted
    costs are read as log-runtimes up to a constant of the graph: f is then the predicted runtime of j as a share of
    that of i, and the loss 0 if every ratio of runtimes is right.
    """
    ahead = -_differences(_predicted_costs(scores, mask))  # [g, i, j]: p_j - p_i
    predicted = tf.exp(tf.minimum(ahead, 0.0)) + tf.nn.relu(ahead)
    ratios = tf.exp(-_differences(_log_slowdown(runtimes, mask)))
    is_slower = _slower_pairs(runtimes, mask)
    # The ratio of the other pairs may overflow, and infinity times 0 in a gradient would be NaN.
    return _mean(tf.abs(predicted - tf.where(is_slower, ratios, 1.0)), is_slower)


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
    "relative_error": relative_error,
}


def build_loss(weights: Mapping[str, float], *, score_spread: float = 0.0) -> Loss:
    """The weighted sum of losses, given weights by name; a loss of weight 0 is not computed.

    With `score_spread` they see scores whose standard deviation in each graph is that: see `spread_scores`.
    """
    for name, weight in weights.items():
        if name not in LOSSES:
            raise UserError(f"unknown loss {name!r}; choose from {', '.join(LOSSES)}")
        if not (math.isfinite(weight) and weight >= 0):
            raise UserError(f"weight of loss {name!r} is {weight}, expected a finite number of at least 0")
    terms = [(LOSSES[name], float(weight)) for name, weight in weights.items() if weight > 0]
    if not terms:
        raise UserError(f"no loss has a positive weight; give one of {', '.join(LOSSES)} a weight such as 1.0")

    def weighted_sum(runtimes: tf.Tensor, scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        if score_spread:
            scores = spread_scores(scores, mask, score_spread)
        return tf.add_n([weight * loss(runtimes, scores, mask) for loss, weight in terms])

    return weighted_sum


def spread_scores(scores: tf.Tensor, mask: tf.Tensor, deviation: float) -> tf.Tensor:
    """float32 [g, c]: a graph's scores with mean 0 and this standard deviation over the unmasked; 0 where masked.

    In some programs the slowest candidate takes ten times as long as the fastest, in others 1.1 times. A model that
    predicts costs must give the second the same margins as the first; a ranking needs no common scale. Scores that
    deviate by less than 1e-4 are not blown up to the full deviation.
    """
    known = tf.where(mask, tf.cast(scores, tf.float32), 0.0)
    return deviation * _standardize(known, mask, least_deviation=_LEAST_DEVIATION)


def _predicted_costs(scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """float32 [g, c]: negated scores, 0 where masked (NaN times 0 would still be NaN)."""
    return tf.where(mask, -tf.cast(scores, tf.float32), 0.0)


def _differences(values: tf.Tensor) -> tf.Tensor:
    """[g, c] -> [g, i, j]: v_i - v_j."""
    return values[:, :, None] - values[:, None, :]


def _valid_pairs(mask: tf.Tensor) -> tf.Tensor:
    return tf.logical_and(mask[:, :, None], mask[:, None, :])


def _slower_pairs(runtimes: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """bool [g, i, j]: both are unmasked and i is slower than j; an exact comparison in the dtype of the runtimes."""
    return tf.logical_and(_valid_pairs(mask), runtimes[:, :, None] > runtimes[:, None, :])


def _mean(values: tf.Tensor, where: tf.Tensor, axis: int | tuple[int, ...] = (1, 2)) -> tf.Tensor:
    """Mean of the values where `where` is True; 0 if it is True nowhere."""
    total = tf.reduce_sum(tf.where(where, values, 0.0), axis=axis)
    return tf.math.divide_no_nan(total, tf.reduce_sum(tf.cast(where, tf.float32), axis=axis))


def _log_slowdown(runtimes: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """float32 [g, c]: log(runtime / fastest), 0 where masked; accurate to float32 for runtimes of any size."""
    fastest = tf.reduce_min(tf.where(mask, runtimes, runtimes.dtype.max), axis=1, keepdims=True)
    excess = tf.cast(tf.where(mask, runtimes - fastest, 0), tf.float32)
    return tf.math.log1p(tf.math.divide_no_nan(excess, tf.cast(fastest, tf.float32)))


def _standardized_log(runtimes: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """float32 [g, c]: log-runtime with mean 0 and standard deviation 1 over the unmasked; 0 if all are equal."""
    return _standardize(_log_slowdown(runtimes, mask), mask)


def _standardize(values: tf.Tensor, mask: tf.Tensor, *, least_deviation: float = 0.0) -> tf.Tensor:
    """float32 [g, c], finite where masked -> mean 0 and deviation 1 over the unmasked, about 0 far below the least."""
    centred = values - _mean(values, mask, axis=1)[:, None]
    deviation = tf.sqrt(_mean(tf.square(centred), mask, axis=1) + least_deviation**2)
    return tf.where(mask, tf.math.divide_no_nan(centred, deviation[:, None]), 0.0)


def _gains(runtimes: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """float32 [g, c]: from 1 for the fastest to 0 for the slowest; 0 where masked, and if all runtimes are equal."""
    logs = _log_slowdown(runtimes, mask)
    slowest = tf.reduce_max(logs, axis=1, keepdims=True)
    return tf.where(mask, tf.math.divide_no_nan(slowest - logs, slowest), 0.0)


def _discount(ranks: tf.Tensor) -> tf.Tensor:
    """1 / log2(1 + rank), for ranks that start at 1."""
    return math.log(2.0) / tf.math.log1p(ranks)


def _ranks(costs: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """float32 [g, c]: rank by ascending cost, from 1; equal costs share the mean of their ranks."""
    differences = tf.where(_valid_pairs(mask), 0.5 + 0.5 * tf.sign(_differences(costs)), 0.0)
    return 0.5 + tf.reduce_sum(differences, axis=2)


def _ideal_dcg(gains: tf.Tensor) -> tf.Tensor:
    """[g]: the DCG of the true order; masked candidates have gain 0 and add nothing."""
    ideal = tf.sort(gains, axis=1, direction="DESCENDING")
    return tf.reduce_sum(ideal * _discount(tf.cumsum(tf.ones_like(gains), axis=1)), axis=1)
