"""Keras layers and models."""
