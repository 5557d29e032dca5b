"""Trainer, optimizers, losses, distribution, run directories."""
