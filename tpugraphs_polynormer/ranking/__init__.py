"""Ranking the candidates of programs: training, evaluation, prediction, submission, report."""
