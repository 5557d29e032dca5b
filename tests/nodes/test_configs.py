"""The shipped configs of node classification, field by field against the hyper-parameters of their authors' scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpugraphs_polynormer.catalog import BENCHMARKS
from tpugraphs_polynormer.config.schema import load_config
from tpugraphs_polynormer.models.encoder_registry import check_encoder

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "nodes"

# name: head width, heads, local epochs, global epochs, local layers, global layers, learning rate, weight decay,
# dropout, global dropout, input dropout, beta
AUTHORS = {
    "roman-empire": (64, 8, 100, 2500, 10, 2, 1e-3, 0, 0.3, 0.5, 0.15, 0.5),
    "amazon-ratings": (256, 2, 200, 2500, 10, 1, 1e-3, 0, 0.3, 0.3, 0.2, -1),
    "minesweeper": (64, 8, 100, 2000, 10, 3, 1e-3, 0, 0.3, 0.3, 0.2, -1),
    "tolokers": (60, 16, 100, 800, 7, 4, 1e-3, 0, 0.5, 0.5, 0.2, 0.1),
    "questions": (64, 8, 200, 1500, 5, 3, 3e-5, 0, 0.2, 0.5, 0.15, 0.4),
    "amazon-computer": (64, 8, 200, 1000, 5, 1, 1e-3, 5e-5, 0.7, 0.7, 0.2, -1),
    "amazon-photo": (64, 8, 200, 1000, 7, 2, 1e-3, 5e-5, 0.7, 0.7, 0.2, -1),
    "coauthor-cs": (64, 8, 100, 1500, 5, 2, 1e-3, 5e-4, 0.3, 0.3, 0.1, -1),
    "coauthor-physics": (32, 8, 100, 1500, 5, 4, 1e-3, 5e-4, 0.5, 0.5, 0.1, -1),
    "wikics": (512, 1, 100, 1000, 7, 2, 1e-3, 0, 0.5, 0.5, 0.5, -1),
    "ogbn-arxiv": (256, 1, 2000, 0, 7, 2, 5e-4, 5e-4, 0.5, 0.5, 0.15, 0.9),
    "ogbn-products": (32, 8, 1000, 0, 10, 2, 5e-4, 0, 0.5, 0.5, 0.2, 0.9),
    "pokec": (256, 1, 2000, 0, 7, 2, 5e-4, 0, 0.2, 0.2, 0, 0.9),
}
# Differences from: the model for small graphs, GAT, no norms, NLL, whole graph.
LARGE = {"learn_beta": False, "project_inputs": False}
OTHERS = {
    "questions": {"pre_norm": True, "loss": "bce"},
    "ogbn-arxiv": {**LARGE, "conv": "gcn", "post_norm": True},
    "ogbn-products": {
        **LARGE,
        "pre_norm": True,
        "post_norm": True,
        **{"nodes_per_batch": 100_000, "epochs_per_evaluation": 9},
    },
    "pokec": {**LARGE, "conv": "gcn", "post_norm": True, "nodes_per_batch": 550_000, "epochs_per_evaluation": 9},
}
PLAIN = {
    "learn_beta": True,
    "project_inputs": True,
    "conv": "gat",
    "pre_norm": False,
    "post_norm": False,
    "loss": "nll",
    "nodes_per_batch": 0,
    "epochs_per_evaluation": 1,
    "ema_decay": 0.0,
    "edge_dropout_rate": 0.0,
    "version": 1,
}


def test_there_is_one_config_per_benchmark() -> None:
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(BENCHMARKS) == set(AUTHORS)


@pytest.mark.parametrize("name", ["ogbn-arxiv", "ogbn-products", "pokec"])
def test_the_large_graphs_say_which_phase_the_scripts_do_not_run(name: str) -> None:
    assert "the paper's text describes a global phase of 500 epochs" in (CONFIGS / f"{name}.yaml").read_text()


@pytest.mark.parametrize("name", AUTHORS)
def test_configs_hold_the_authors_hyper_parameters(name: str) -> None:
    config = load_config(CONFIGS / f"{name}.yaml")
    check_encoder(config.model)
    model, training = config.model, config.training
    found = (
        *(model.hidden_dim / model.num_heads, model.num_heads, training.local_epochs, training.epochs),
        *(model.num_local_layers, model.num_global_layers, training.learning_rate, training.weight_decay),
        *(model.dropout_rate, model.global_dropout_rate, model.input_dropout_rate, model.beta),
    )
    assert found == AUTHORS[name]
    recipe = (training.optimizer, training.schedule, training.warmup_steps, training.clip_norm, training.patience)
    assert recipe == ("adam", "constant", 0, 0, 0)
    settings = {key: getattr(model if hasattr(model, key) else training, key) for key in PLAIN}
    assert settings == {**PLAIN, **OTHERS.get(name, {})}
    assert config.data.benchmark == name
    assert (model.encoder, model.attention, model.relu, model.share_query_key) == (
        *("polynormer", "local_to_global", True, True),
    )
    # The two benchmarks that train on partitions are too large for an evaluation in one call, too.
    assert (training.chunk_nodes > 0) == (training.nodes_per_batch > 0)


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: path.stem)
def test_configs_say_how_they_are_run(path: Path) -> None:
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert any(line.startswith("# Command: ") for line in header)
    assert any(line.startswith("# Hardware") for line in header)


# tunedGNN's scripts. Encoder, then data set: width, layers, learning rate, weight decay, dropout, epochs, options.
TUNED = {
    "gcn": {
        "amazon-computer": (512, 3, 1e-3, 5e-5, 0.5, 1000, "ln"),
        "amazon-photo": (256, 6, 1e-3, 5e-5, 0.5, 1000, "ln res"),
        "coauthor-cs": (512, 2, 1e-3, 5e-4, 0.3, 1500, "ln res"),
        "coauthor-physics": (64, 2, 1e-3, 5e-4, 0.3, 1500, "ln res"),
        "wikics": (256, 3, 1e-3, 0, 0.5, 1000, "ln"),
        "amazon-ratings": (512, 4, 1e-3, 0, 0.5, 2500, "bn res"),
        "minesweeper": (64, 12, 1e-2, 0, 0.2, 2000, "bn res"),
        "roman-empire": (512, 9, 1e-3, 0, 0.5, 2500, "bn res pre_linear"),
        "questions": (512, 10, 3e-5, 0, 0.3, 1500, "res pre_linear"),
        "ogbn-arxiv": (512, 5, 5e-4, 5e-4, 0.5, 2000, "bn res"),
        "pokec": (256, 7, 5e-4, 0, 0.2, 2000, "bn res"),
    },
    "graphsage": {
        "amazon-computer": (64, 4, 1e-3, 5e-5, 0.3, 1000, "ln"),
        "amazon-photo": (64, 6, 1e-3, 5e-5, 0.2, 1000, "ln res"),
        "coauthor-cs": (512, 2, 1e-3, 5e-4, 0.5, 1500, "ln res"),
        "coauthor-physics": (64, 2, 1e-3, 5e-4, 0.7, 1500, "bn res"),
        "wikics": (256, 2, 1e-3, 0, 0.7, 1000, "ln"),
        "amazon-ratings": (512, 9, 1e-3, 0, 0.5, 2500, "bn res"),
        "minesweeper": (64, 15, 1e-2, 0, 0.2, 2000, "bn res"),
        "roman-empire": (256, 9, 1e-3, 0, 0.3, 2500, "bn pre_linear"),
        "questions": (512, 6, 3e-5, 0, 0.2, 1500, "ln pre_linear"),
        "ogbn-arxiv": (256, 4, 5e-4, 5e-4, 0.5, 2000, "bn res"),
        "pokec": (256, 7, 5e-4, 0, 0.2, 2000, "bn res"),
    },
    "gat": {
        "amazon-computer": (64, 2, 1e-3, 5e-5, 0.5, 1000, "ln"),
        "amazon-photo": (64, 3, 1e-3, 5e-5, 0.5, 1000, "ln res"),
        "coauthor-cs": (256, 1, 1e-3, 5e-4, 0.3, 1500, "ln res"),
        "coauthor-physics": (256, 2, 1e-3, 5e-4, 0.7, 1500, "bn res"),
        "wikics": (512, 2, 1e-3, 0, 0.7, 1000, "ln res"),
        "amazon-ratings": (512, 4, 1e-3, 0, 0.5, 2500, "bn res"),
        "minesweeper": (64, 15, 1e-2, 0, 0.2, 2000, "bn res"),
        "roman-empire": (512, 10, 1e-3, 0, 0.3, 2500, "bn res pre_linear"),
        "questions": (512, 3, 3e-5, 0, 0.2, 1500, "ln res pre_linear"),
        "pokec": (256, 7, 5e-4, 0, 0.2, 2000, "bn res"),
    },
}


@pytest.mark.parametrize("encoder", TUNED)
def test_tuned_configs_hold_the_published_hyper_parameters(encoder: str) -> None:
    folder = CONFIGS / "tuned" / encoder
    assert {path.stem for path in folder.glob("*.yaml")} == set(TUNED[encoder])
    for name, (*numbers, options) in TUNED[encoder].items():
        config = load_config(folder / f"{name}.yaml")
        check_encoder(config.model)
        model, training = config.model, config.training
        found = [model.hidden_dim, model.num_local_layers, training.learning_rate, training.weight_decay]
        assert [*found, model.dropout_rate, training.epochs] == numbers, name
        flags = {"ln": model.post_layer_norm, "bn": model.post_norm, "res": model.residual}
        flags |= {"pre_linear": model.project_inputs}
        assert {flag for flag, is_set in flags.items() if is_set} == set(options.split()), name
        assert (model.encoder, config.data.benchmark) == (encoder, name)
        assert encoder != "gat" or model.num_heads == 1
        recipe = (training.optimizer, training.schedule, training.warmup_steps, training.clip_norm)
        assert (*recipe, training.patience, training.local_epochs) == ("adam", "constant", 0, 0, 0, 0), name
        assert training.loss == ("bce" if name == "questions" else "nll")
        assert model.input_dropout_rate == (0.15 if name == "ogbn-arxiv" else 0)
        is_pokec = name == "pokec"
        batches = (training.nodes_per_batch, training.epochs_per_evaluation, training.chunk_nodes > 0)
        assert batches == ((550_000, 9, True) if is_pokec else (0, 1, False))
        assert not (model.pre_norm or model.jumping_sum or training.ema_decay or model.edge_dropout_rate), name
