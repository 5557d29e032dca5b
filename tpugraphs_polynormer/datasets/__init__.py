"""Preprocessed collections: their files, a reader without TensorFlow, and the tf.data input pipeline."""
