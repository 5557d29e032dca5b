"""Keras layers on graphs."""
