"""What all layers share: Keras finds their class by its name, and their keyword arguments are their config."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

register = tf.keras.utils.register_keras_serializable("tpugraphs_polynormer")


class Configured:
    """A mixin for Keras layers: the keyword-only arguments of the constructor become attributes and the config.

    So each hyper-parameter is written once, in the signature.
    """

    def keep_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Sets an attribute for each keyword-only argument; `arguments` are the constructor's `locals()`."""
        for name in argument_names(type(self)):
            if name in arguments:
                setattr(self, name, arguments[name])

    def get_config(self) -> dict:
        """Keras's config and every keyword-only argument; layers among them as their own configs."""
        own = {name: getattr(self, name) for name in argument_names(type(self))}
        layers = {name: value for name, value in own.items() if isinstance(value, tf.keras.layers.Layer)}
        return {
            **super().get_config(),
            **own,
            **{name: tf.keras.layers.serialize(value) for name, value in layers.items()},
        }

    @classmethod
    def from_config(cls, config: dict) -> Any:
        """The layer of a config."""
        layers = {name: value for name, value in config.items() if isinstance(value, dict) and "class_name" in value}
        return cls(**{**config, **{name: tf.keras.layers.deserialize(value) for name, value in layers.items()}})


@functools.cache
def argument_names(cls: type) -> tuple[str, ...]:
    """The keyword-only arguments of a Configured class, those that it passes on to its bases included."""
    constructors = [each.__init__ for each in cls.__mro__ if issubclass(each, Configured) and "__init__" in vars(each)]
    parameters = [one for each in constructors for one in inspect.signature(each).parameters.values()]
    return tuple(dict.fromkeys(one.name for one in parameters if one.kind is one.KEYWORD_ONLY))
