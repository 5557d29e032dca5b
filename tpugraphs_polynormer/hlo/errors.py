"""The one exception for HLO input that cannot be used."""

from __future__ import annotations

from tpugraphs_polynormer.errors import UserError


class HloError(UserError):
    """An HLO file or module that is malformed, inconsistent, or of a kind that was not asked for."""
