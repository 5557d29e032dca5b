"""Exclusion of graphs by name: the graphs that patterns match, and errors."""

import pytest

from tpugraphs_polynormer.datasets.exclusion import find_excluded, read_patterns
from tpugraphs_polynormer.errors import UserError

XLA, NLP = "layout:xla:default", "layout:nlp:default"
GRAPHS = {
    (XLA, "train"): ["alexnet", "magenta_dynamic", "unet3d", "unet_2d"],
    (XLA, "valid"): ["resnet50", "unet_3d.4x4.bf16"],
    (XLA, "test"): ["0a1b"],
    (NLP, "train"): ["bert_en", "magenta_dynamic"],
}


def test_names_and_patterns_match_in_every_collection():
    assert find_excluded(GRAPHS, ["unet*", "magenta_dynamic"]) == {
        XLA: {"train": ("magenta_dynamic", "unet3d", "unet_2d"), "valid": ("unet_3d.4x4.bf16",)},
        NLP: {"train": ("magenta_dynamic",)},
    }
    assert find_excluded(GRAPHS, ["unet_3d.4x4.bf16"]) == {XLA: {"valid": ("unet_3d.4x4.bf16",)}}
    assert find_excluded(GRAPHS, []) == {}


@pytest.mark.parametrize(
    "patterns, said",
    [
        (["unet*", "magenta_dynamik"], "no graph is named 'magenta_dynamik'; did you mean magenta_dynamic?"),
        (["zzz"], "no graph is named 'zzz'; check the name and --collections"),
        (["UNET*"], "no graph is named 'UNET"),
        (["0a1b"], "0a1b is in the test split of layout:xla:default; a submission needs"),
        (["resnet50", "unet*"], "no graph is left in the valid split of layout:xla:default"),
        (["*_*"], "no graph is left in the train split of layout:nlp:default"),
    ],
)
def test_what_cannot_be_meant_is_refused(patterns, said):
    with pytest.raises(UserError) as caught:
        find_excluded(GRAPHS, patterns)
    assert said in str(caught.value)


def test_a_file_of_patterns(tmp_path):
    (tmp_path / "bad.txt").write_text("# reported as corrupt\nunet*   # all of them\n\n  magenta_dynamic\n")
    assert read_patterns(tmp_path / "bad.txt") == ["unet*", "magenta_dynamic"]
    with pytest.raises(UserError, match=r"nowhere\.txt: not readable"):
        read_patterns(tmp_path / "nowhere.txt")
