"""Loads the authors' PyTorch weights, by their parameter names, into a NodeClassifier with a Polynormer encoder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf

from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.layers.convolutions import GraphAttention
from tpugraphs_polynormer.layers.global_attention import GlobalAttention
from tpugraphs_polynormer.layers.local_attention import LocalAttention
from tpugraphs_polynormer.models.node_classifier import NodeClassifier

_PREFIX = "param/"


class TorchWeightsError(UserError):
    """The weights do not fit the model."""


def load_torch_weights(model: NodeClassifier, weights: Mapping[str, np.ndarray] | str | os.PathLike) -> None:
    """Assigns torch parameters to a built model.

    Args:
      model: a built NodeClassifier (call it once, or `model.build([None, feature_dim])`).
      weights: parameter name -> array, or an npz of them (a saved state_dict); names may start with `param/`, in which
        case everything else in the mapping is ignored.

    Raises:
      TorchWeightsError: lists all missing and unexpected names and all shapes that differ; nothing is assigned then.
    """
    given = _named_arrays(weights)
    wanted = torch_variables(model)
    problems = [f"missing {name}" for name in wanted if name not in given]
    problems += [f"unexpected {name}" for name in given if name not in wanted and not _is_unused(name, model)]
    for name in wanted.keys() & given.keys():
        found, expected = given[name].shape, _torch_shape(name, wanted[name])
        if found != expected:
            problems.append(f"{name} has shape {found}, expected {expected}")
    if problems:
        raise TorchWeightsError(
            f"the torch weights do not fit the model: {'; '.join(sorted(problems))}. "
            "Build the model with the settings that the weights were trained with."
        )
    for name, pieces in wanted.items():
        for variable, value in zip(pieces, from_torch_layout(given[name], name), strict=True):
            variable.assign(value)


def torch_variables(model: NodeClassifier) -> dict[str, list[tf.Variable]]:
    """Torch parameter name -> our variables; several variables are the rows of one torch parameter (betas)."""
    if not model.built:
        raise TorchWeightsError("the model has no variables yet: call model.build([None, feature_dim]) first")
    pairs: list[tuple[str, tf.Variable]] = []
    if model.project_inputs is not None:
        pairs += _linear("lin_in", model.project_inputs)
    for i, layer in enumerate(model.encoder.local_layers):
        pairs += _local(i, layer)
    pairs += _linear("pred_local", model.local_head)
    if model.global_head is not None:
        for i, layer in enumerate(model.encoder.global_layers):
            pairs += _global(i, layer)
        pairs += _norm("ln", model.encoder.norm)
        pairs += _linear("global_attn.lin_out", model.encoder.global_projection)
        pairs += _linear("pred_global", model.global_head)
    variables: dict[str, list[tf.Variable]] = {}
    for name, variable in pairs:
        variables.setdefault(name, []).append(variable)
    return variables


def to_torch_layout(pieces: list[np.ndarray], name: str) -> np.ndarray:
    """Our arrays (or gradients) for one torch parameter, in torch's layout: transposed kernels, stacked betas."""
    if name.endswith("betas"):
        return np.stack(pieces)
    array = pieces[0]
    if name.endswith(("att_src", "att_dst")):
        return array[np.newaxis]
    return array.T


def from_torch_layout(array: np.ndarray, name: str) -> list[np.ndarray]:
    """The inverse of `to_torch_layout`."""
    if name.endswith("betas"):
        return list(array)
    if name.endswith(("att_src", "att_dst")):
        return [array[0]]
    return [array.T]


def _named_arrays(weights: Mapping[str, np.ndarray] | str | os.PathLike) -> dict[str, np.ndarray]:
    if not isinstance(weights, Mapping):
        try:
            with np.load(weights, allow_pickle=False) as file:
                weights = {name: file[name] for name in file.files}
        except (OSError, ValueError) as error:
            raise TorchWeightsError(f"{weights}: not a readable npz of named arrays ({error})") from error
    prefixed = {name.removeprefix(_PREFIX): array for name, array in weights.items() if name.startswith(_PREFIX)}
    return {name: np.asarray(array) for name, array in (prefixed or weights).items()}


def _is_unused(name: str, model: NodeClassifier) -> bool:
    """What the authors' state_dict holds although their forward pass does not use it."""
    return name.endswith("num_batches_tracked") or (name.startswith("lin_in.") and model.project_inputs is None)


def _torch_shape(name: str, pieces: list[tf.Variable]) -> tuple[int, ...]:
    return to_torch_layout([np.zeros(piece.shape, bool) for piece in pieces], name).shape


def _linear(name: str, layer: tf.keras.layers.Dense) -> Iterator[tuple[str, tf.Variable]]:
    yield f"{name}.weight", layer.kernel
    if layer.use_bias:
        yield f"{name}.bias", layer.bias


def _norm(name: str, layer: tf.keras.layers.Layer) -> Iterator[tuple[str, tf.Variable]]:
    yield f"{name}.weight", layer.scale
    yield f"{name}.bias", layer.offset


def _local(i: int, layer: LocalAttention) -> Iterator[tuple[str, tf.Variable]]:
    if layer.learn_beta:
        yield "betas", layer.gate.weight
    yield from _linear(f"h_lins.{i}", layer.factor)
    yield from _linear(f"lins.{i}", layer.linear)
    yield from _norm(f"lns.{i}", layer.norm)
    yield f"local_convs.{i}.lin.weight", layer.convolve.linear.kernel
    if isinstance(layer.convolve, GraphAttention):
        yield f"local_convs.{i}.att_src", layer.convolve.source_weight
        yield f"local_convs.{i}.att_dst", layer.convolve.target_weight
    else:
        yield f"local_convs.{i}.bias", layer.convolve.bias
    if layer.norm_before is not None:
        yield from _norm(f"pre_lns.{i}", layer.norm_before)
    if layer.norm_after is not None:
        yield from _norm(f"post_bns.{i}", layer.norm_after)
        yield f"post_bns.{i}.running_mean", layer.norm_after.moving_mean
        yield f"post_bns.{i}.running_var", layer.norm_after.moving_variance


def _global(i: int, layer: GlobalAttention) -> Iterator[tuple[str, tf.Variable]]:
    if layer.learn_beta:
        yield "global_attn.betas", layer.gate.weight
    yield from _linear(f"global_attn.h_lins.{i}", layer.factor)
    if layer.query is not None:
        yield from _linear(f"global_attn.q_lins.{i}", layer.query)
    yield from _linear(f"global_attn.k_lins.{i}", layer.key)
    yield from _linear(f"global_attn.v_lins.{i}", layer.value)
    yield from _norm(f"global_attn.lns.{i}", layer.norm)
