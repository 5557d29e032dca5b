"""The trainer of every task, optimizers, ranking losses, tf.distribute strategies and run directories."""
