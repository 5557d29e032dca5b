"""A summary of one npz archive: counts, opcodes, candidates, runtimes, noise, and a figure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import kendalltau

from tpugraphs_polynormer.archives.estimated import describe_origin
from tpugraphs_polynormer.archives.noise import MIN_PAIRS, group_equal, pair_repeats, study_noise
from tpugraphs_polynormer.archives.npz import LayoutArchive, TileArchive, read_archive, relative_costs
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import replacing
from tpugraphs_polynormer.hlo.opcodes import OPCODE_NAMES

_QUANTILES = (0, 10, 50, 90, 100)


@dataclass(frozen=True)
class Inspection:
    """The summary of an archive; `costs` [c] are runtimes, or runtime over normalizer for tiles."""

    archive: TileArchive | LayoutArchive
    opcodes: tuple[tuple[str, int], ...]  # (name, nodes), most frequent first
    configurable: tuple[tuple[str, int], ...]  # the same over the config nodes of a layout archive
    groups: np.ndarray  # [c] int64, equal for candidates that are equal
    costs: np.ndarray
    origin: str | None = None  # who estimated the runtimes; None: they count as measured

    @property
    def num_duplicates(self) -> int:
        """The number of candidates that repeat an earlier one."""
        return len(self.groups) - int(self.groups.max()) - 1

    def __str__(self) -> str:
        return "\n".join(f"{label:<20}{value}" for label, value in self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        archive = self.archive
        rows = [
            ("graph", f"{archive.name} ({archive.kind})"),
            ("nodes", f"{len(archive.node_opcode):,}"),
            ("edges", f"{len(archive.edge_index):,}"),
            ("opcodes", _histogram(self.opcodes)),
        ]
        if isinstance(archive, LayoutArchive):
            rows.append(("config nodes", f"{len(archive.node_config_ids):,}: {_histogram(self.configurable)}"))
            rows.append(("computation starts", " ".join(map(str, archive.node_splits)) or "none"))
        rows.append(
            ("candidates", f"{archive.num_candidates:,}, of them {self.num_duplicates:,} repeat an earlier one")
        )
        if isinstance(archive, TileArchive) and not archive.config_feat.any():
            rows.append(("warning", "all candidate features are 0: nothing to rank by"))
        if self.origin:
            rows.append(("runtimes", self.origin))
        return [*rows, *self._runtime_rows()]

    def _runtime_rows(self) -> list[tuple[str, str]]:
        if self.archive.is_hidden:
            return [("runtime", "hidden (test split)")]
        unit = "ns" if isinstance(self.archive, LayoutArchive) else "of the default tile's runtime"
        values = np.percentile(self.costs, _QUANTILES)
        shown = "  ".join(
            f"{quantile}%: {value:,.4g}" if value < 1e4 else f"{quantile}%: {value:,.0f}"
            for quantile, value in zip(_QUANTILES, values, strict=True)
        )
        rows = [("runtime quantiles", f"{shown} {unit}"), ("worst / best", f"{values[-1] / values[0]:.3f}")]
        return [*rows, *self._noise_rows()]

    def _noise_rows(self) -> list[tuple[str, str]]:
        """Rows about the noise of repeated measurements, or one row that says why it cannot be estimated."""
        first, second = pair_repeats(self.groups)
        if not len(first):
            return [("noise", "no candidate is repeated: the noise cannot be estimated")]
        if not self.groups.any():
            return [("noise", "all candidates are equal: noise and differences that are not recorded look the same")]
        study = study_noise(self.costs, self.groups)
        if study is None:
            found = f"(pairs of them: {len(first)}, needed: {MIN_PAIRS})"
            return [("noise", f"too few repeated measurements to estimate it {found}")]
        agreement = kendalltau(self.costs[first], self.costs[second]).statistic
        return [
            ("repeats", f"{study.num_repeated:,} candidates were measured more than once"),
            (
                "their difference",
                f"{_percent(study.median)} (median), {_percent(study.noise)} (95 % are within: the noise)",
            ),
            (
                "their agreement",
                f"Kendall tau {agreement:.2f} of one measurement against another of the same candidate",
            ),
            ("within the noise", f"{100 * study.close_share:.1f} % of the pairs of different candidates"),
            ("a perfect model", f"Kendall tau about {study.perfect_tau:.2f} against single measurements (estimate)"),
        ]


def inspect_archive(path: Path | str) -> Inspection:
    """The summary of one archive."""
    archive = read_archive(path)
    if isinstance(archive, LayoutArchive):
        candidates, configurable = archive.node_config_feat, archive.node_opcode[archive.node_config_ids]
        costs = archive.config_runtime.astype(np.float64)
    else:
        candidates, configurable = archive.config_feat, np.zeros(0, np.uint8)
        costs = relative_costs(archive.config_runtime, archive.config_runtime_normalizers)
    return Inspection(
        archive=archive,
        opcodes=_count_opcodes(archive.node_opcode),
        configurable=_count_opcodes(configurable),
        groups=group_equal(candidates),
        costs=costs,
        origin=describe_origin(path),
    )


def check_picture(path: Path | str) -> None:
    """Raises a UserError unless a picture can be written in the format that the name ends in."""
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if Path(path).suffix.lower().removeprefix(".") not in known:
        ends = ", ".join(f".{each}" for each in sorted(known))
        raise UserError(f"{path}: found the ending {Path(path).suffix!r}, expected one of {ends}; rename the picture")


def plot_inspection(inspection: Inspection, path: Path | str) -> None:
    """Draws the runtime distribution and the opcode mix to an image file."""
    check_picture(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    figure.suptitle(inspection.archive.name)
    if inspection.archive.is_hidden:
        left.text(0.5, 0.5, "runtimes hidden (test split)", ha="center", va="center")
        left.set_axis_off()
    else:
        left.hist(inspection.costs / inspection.costs.min(), bins=60, color="#2f6f9f")
        left.set(xlabel="runtime / best runtime", ylabel="candidates", title="Runtimes", yscale="log")
    names, counts = zip(*inspection.opcodes[:15], strict=True)
    right.barh(names[::-1], counts[::-1], color="#9f5f2f")
    right.set(xlabel="nodes", title="Opcodes (15 most frequent)")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=110, format=Path(path).suffix.lower().removeprefix("."))


def _count_opcodes(opcodes: np.ndarray) -> tuple[tuple[str, int], ...]:
    ids, counts = np.unique(opcodes, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return tuple((OPCODE_NAMES[ids[i]], int(counts[i])) for i in order)


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


def _histogram(counts: tuple[tuple[str, int], ...], most: int = 8) -> str:
    shown = ", ".join(f"{name} {count:,}" for name, count in counts[:most])
    return shown + (f", {len(counts) - most} more" if len(counts) > most else "")
