"""Ranking of candidates: the training task, evaluation, prediction, submission, report, own programs."""
