"""Configs: reading, overrides, errors that name the field, and dumps that can be read again."""

import dataclasses
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tpugraphs_polynormer.config.loader import (
    ConfigError,
    config_differences,
    describe_config,
    dump_config,
    list_settings,
    read_config,
    section,
    setting,
)
from tpugraphs_polynormer.config.schema import NodeConfig, RankingConfig, load_config


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float = setting(0.1, "a rate", low=0, high=1)
    sizes: tuple[int, ...] = setting((1, 2), "some sizes", low=1)


@dataclasses.dataclass(frozen=True)
class Outer:
    name: str = setting("a", "a name", choices=("a", "b"))
    steps: int = setting(10, "a count", low=1)
    active: bool = setting(False, "a switch")
    inner: Inner = section(Inner, "inside")


def write(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def test_file_changes_defaults_and_overrides_change_the_file(tmp_path):
    path = write(tmp_path, "steps: 20\ninner:\n  rate: 0.5\n")
    assert read_config(Outer, path) == Outer(steps=20, inner=Inner(rate=0.5))
    assert read_config(Outer, path, ["steps=30", "inner.sizes=[4, 5]"]) == Outer(
        steps=30, inner=Inner(rate=0.5, sizes=(4, 5))
    )


def test_empty_file_and_empty_section_are_the_defaults(tmp_path):
    assert read_config(Outer, write(tmp_path, "")) == Outer()
    assert read_config(Outer, write(tmp_path, "inner:\n")) == Outer()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E-3", 1e-3),
        ("5e-1", 0.5),
        ("1", 1.0),
        (".25", 0.25),
        ("1.0e-3", 1e-3),
        ("2.5e-1", 0.25),
        ("+1e-1", 0.1),
    ],
)
def test_numbers_of_every_spelling(tmp_path, text, value):
    config = read_config(Outer, write(tmp_path, f"inner: {{rate: {text}}}"))
    assert config.inner.rate == value
    assert type(config.inner.rate) is float


def test_scientific_integer():
    config = read_config(Outer, None, ["steps=2e3"])
    assert config.steps == 2000
    assert type(config.steps) is int


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("stesp=3", ["stesp", "did you mean steps"]),
        ("inner.rte=3", ["inner.rte", "did you mean inner.rate"]),
        ("steps=x", ["steps", "'x'", "expected int"]),
        ("steps=1.5", ["steps", "1.5", "expected int"]),
        ("steps=true", ["steps", "True", "expected int"]),
        ("steps=0", ["steps", "0", "1 to inf"]),
        ("active=1", ["active", "1", "expected bool"]),
        ("active=yess", ["active", "'yess'", "expected bool"]),
        ("name=c", ["name", "'c'", "one of a, b"]),
        ("name=3", ["name", "3", "expected str"]),
        ("inner=3", ["inner", "3", "a mapping"]),
        ("inner.rate=2", ["inner.rate", "2.0", "0 to 1"]),
        ("inner.rate=.nan", ["inner.rate", "nan", "expected float"]),
        ("inner.rate=.inf", ["inner.rate", "inf", "expected float"]),
        ("inner.rate=1e999", ["inner.rate", "inf", "expected float"]),
        (f"inner.rate=1{'0' * 400}", ["inner.rate", "1000", "expected float"]),
        ("steps=1e999", ["steps", "inf", "expected int"]),
        ("steps='3'", ["steps", "'3' (str)", "expected int"]),
        ("inner.rate=true", ["inner.rate", "True (bool)", "expected float"]),
        ("inner.sizes=[1, 0]", ["--set inner.sizes=[1, 0]: inner.sizes[1]", "0", "1 to inf"]),
        ("inner={rte: 1}", ["--set inner={rte: 1}: unknown field inner.rte", "did you mean inner.rate"]),
        ("inner.sizes=3", ["inner.sizes", "3", "a list"]),
        ("inner.sizes=[1, x]", ["inner.sizes", "'x'", "expected int"]),
        ("steps.more=3", ["steps", "expected int"]),
        ("steps", ["steps", "expected NAME=VALUE"]),
        ("steps=[", ["steps=[", "not valid YAML"]),
    ],
)
def test_mistakes_are_refused_by_name(override, words):
    with pytest.raises(ConfigError) as error:
        read_config(Outer, None, [override])
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stepz: 3", ["config.yaml", "stepz", "steps"]),
        ("steps: 3\nsteps: 4", ["config.yaml", "'steps' twice"]),
        ("- 1", ["config.yaml", "found list"]),
        ("steps: !!python/object/apply:os.getcwd []", ["config.yaml", "not valid YAML"]),
        ("a: b: c", ["config.yaml", "not valid YAML"]),
    ],
)
def test_bad_files_are_refused(tmp_path, text, words):
    with pytest.raises(ConfigError) as error:
        read_config(Outer, write(tmp_path, text))
    for word in words:
        assert word in str(error.value)


def test_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        read_config(Outer, tmp_path / "nowhere.yaml")


def test_rule_over_several_fields_names_the_option():
    with pytest.raises(ConfigError, match=r"--set model.num_heads=7.*model.hidden_dim.*multiple of num_heads 7"):
        load_config(None, ["model.num_heads=7"])


def test_each_mistake_is_named_where_it_was_written(tmp_path):
    path = write(tmp_path, "steps: 0\ninner: {rate: 0.5}\n")
    with pytest.raises(ConfigError, match=r"config\.yaml: steps: found 0"):
        read_config(Outer, path, ["inner.rate=0.25"])
    with pytest.raises(ConfigError, match=r"^--set inner\.rate=7: inner\.rate: found 7\.0"):
        read_config(Outer, path, ["steps=1", "inner.rate=7"])
    assert read_config(Outer, path, ["steps=1", "inner.sizes=[3]"]) == Outer(steps=1, inner=Inner(rate=0.5, sizes=(3,)))


def test_rules_over_several_fields_see_all_options_together():
    """Each of the two options alone would break the rule."""
    config = load_config(None, ["model.num_heads=7", "model.hidden_dim=70"])
    assert (config.model.num_heads, config.model.hidden_dim) == (7, 70)


@given(
    st.builds(
        Outer,
        name=st.sampled_from(["a", "b"]),
        steps=st.integers(1, 10**12),
        active=st.booleans(),
        inner=st.builds(
            Inner,
            rate=st.floats(0, 1),
            sizes=st.lists(st.integers(1, 99), max_size=4).map(tuple),
        ),
    )
)
def test_dump_and_reload_is_the_same_object(tmp_path_factory, config):
    folder = tmp_path_factory.mktemp("config")
    assert read_config(Outer, write(folder, dump_config(config))) == config
    assert read_config(Outer, write(folder, describe_config(config))) == config


def test_the_real_config_reloads_from_its_description(tmp_path):
    config = load_config(None, ["model.hidden_dim=128", "seed=7"])
    assert load_config(write(tmp_path, describe_config(config))) == config
    assert load_config(write(tmp_path, dump_config(config))) == config


def test_the_task_chooses_the_fields(tmp_path):
    path = write(tmp_path, "task: node_classification\ndata:\n  benchmark: pokec\n")
    assert isinstance(load_config(None), RankingConfig) and isinstance(load_config(path), NodeConfig)
    assert load_config(None, ["data.benchmark=pokec", "task=node_classification"]) == load_config(path)
    assert load_config(write(tmp_path, dump_config(load_config(path)))) == load_config(path)
    with pytest.raises(ConfigError, match=r"unknown field data\.benchmark; did you mean"):
        load_config(path, ["task=ranking"])
    with pytest.raises(ConfigError, match=r"task: found 'both', expected one of ranking, node_classification"):
        load_config(None, ["task=both"])
    assert config_differences(load_config(None), load_config(path)) == ["task: 'ranking' != 'node_classification'"]


def test_description_carries_each_field_with_its_help():
    shown = describe_config(Outer())
    assert "# a rate\n  rate: 0.1" in shown
    assert "# a name (a | b)\nname: a" in shown


def test_differences_name_the_fields():
    other = Outer(steps=11, inner=Inner(rate=0.2))
    assert config_differences(Outer(), other) == ["steps: 10 != 11", "inner.rate: 0.1 != 0.2"]


@pytest.mark.parametrize("cls, data", [(RankingConfig, "data.collection"), (NodeConfig, "data.benchmark")])
def test_every_field_of_the_config_is_described(cls, data):
    rows = list_settings(cls)
    assert all(text.strip() for _, text, _ in rows)
    assert {name for name, _, _ in rows} >= {"task", "seed", data, "model.hidden_dim"}
    assert len({name for name, _, _ in rows}) == len(rows)


def test_files_hold_plain_yaml_only(tmp_path):
    assert yaml.safe_load(dump_config(Outer())) == {
        "name": "a",
        "steps": 10,
        "active": False,
        "inner": {"rate": 0.1, "sizes": [1, 2]},
    }


LAUGHS = "\n".join(["a: &a [x, x, x, x, x, x, x, x, x]"] + [
    f"{here}: &{here} [{', '.join([f'*{before}'] * 9)}]" for before, here in zip("abcdefgh", "bcdefghi", strict=True)
])  # fmt: skip
HARMFUL = {
    "aliases of aliases": (LAUGHS, "more than 10,000 values"),
    "merged aliases": (LAUGHS.replace("[", "[{<<: ").replace("]", "}]"), "config.yaml"),
    "an alias of itself": ("a: &a [*a]", "more than 10,000 values"),
    "a mapping in itself": ("a: &a {b: *a}", "more than 10,000 values"),
    "deep lists": ("[" * 50_000, "not valid YAML"),
    "many keys": ("\n".join(f"k{i}: 0" for i in range(60_000)), "more than 10,000 values"),
    "a large file": ("#" * (1 << 21), "2,097,152 bytes"),
    "a long number": ("steps: " + "9" * 100_000, "config.yaml"),
    "a list as a key": ("? [a]\n: 1", "not valid YAML"),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_yaml_made_to_do_harm_is_refused_at_once_in_one_line(tmp_path, name):
    text, said = HARMFUL[name]
    path = tmp_path / "config.yaml"
    path.write_text(text)
    started = time.process_time()
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert time.process_time() - started < 5  # about a second, where nothing else runs
    assert said in str(caught.value) and len(str(caught.value)) < 1000
    assert str(path) in str(caught.value)


def test_anchors_and_aliases_as_people_use_them_are_taken(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("model: {hidden_dim: &width 32, opcode_dim: *width}\n")
    config = load_config(path)
    assert (config.model.hidden_dim, config.model.opcode_dim) == (32, 32)
