"""The phases of a run and their epochs."""

import pytest

from tpugraphs_polynormer.config.schema import load_config
from tpugraphs_polynormer.training.task import Phase, locate_phase, plan_phases


def plan(local: int, last: int, *, has_phases: bool = True) -> tuple[Phase, ...]:
    config = load_config(None, [f"training.local_epochs={local}", f"training.epochs={last}"])
    return plan_phases(config.training, has_phases=has_phases)


def test_the_warm_up_comes_first_and_empty_phases_are_left_out():
    assert plan(2, 3) == (Phase("local", 2), Phase("global", 3))
    assert plan(0, 3) == (Phase("global", 3),)
    assert plan(2, 0) == (Phase("local", 2),)
    assert plan(2, 3, has_phases=False) == (Phase("local", 5),)


def test_epochs_are_found_in_their_phase():
    phases = plan(2, 3)
    found = [locate_phase(phases, epoch) for epoch in range(5)]
    assert found == [("local", 2), ("local", 2), ("global", 5), ("global", 5), ("global", 5)]
    with pytest.raises(ValueError, match="epoch 5 is past the last phase, which ends after 5 epochs"):
        locate_phase(phases, 5)
