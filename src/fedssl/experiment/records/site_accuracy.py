"""What the sites found with labels of their own, from the counts in a run's records; the worst site first."""

import statistics
from dataclasses import dataclass

from fedssl.evaluation.score import Best, Gain
from fedssl.experiment.records.run_record import RunRecord, Table
from fedssl.experiment.records.verdict import MEASURES

MEAN_TITLE = "mean over sites"
Measured = dict[str, "SiteAccuracy"]  # by measure


@dataclass(frozen=True)
class SiteAccuracy:
    """Of a site's n test images, the share that the trained encoder classifies correctly, and the first one."""

    title: str
    n: int
    trained: float
    baseline: float | None

    @property
    def gain(self) -> Gain | None:
        """Over the encoder that the run began with; counts do not say which images were right, so unpaired."""
        return None if self.baseline is None else Gain.unpaired(Best(self.baseline), Best(self.trained), self.n)


def at_sites(record: RunRecord) -> list[Measured]:
    """Every site that sent counts, the one with the lowest linear probe first; of secure sums one, for all."""
    counted = [one["at_sites"]["counts"] for one in record.rounds if one.get("at_sites", {}).get("counts")]
    known = record.summary.get("at_sites", {})
    first, last = known.get("initial", []), known.get("final") or (counted[-1] if counted else [])
    before = {one.get("client"): one for one in first}
    sites = [{name: _accuracy(record, name, one, before.get(one.get("client"))) for name in MEASURES} for one in last]
    return sorted(sites, key=lambda one: (one["linear"].trained, one["linear"].title))


def _accuracy(record: RunRecord, measure: str, last: Table, first: Table | None) -> SiteAccuracy:
    baseline = first[measure] / first["n"] if first else None
    return SiteAccuracy(site_title(record, last), last["n"], last[measure] / last["n"], baseline)


def site_title(record: RunRecord, counted: Table) -> str:
    """Whose counts these are."""
    return record.client(counted["client"]) if "client" in counted else f"all {counted['clients']} sites together"


def mean_of(sites: list[Measured], measure: str) -> SiteAccuracy:
    """Every site counts the same, however many test images it has."""
    first = [one[measure].baseline for one in sites]
    known = [value for value in first if value is not None]
    return SiteAccuracy(
        MEAN_TITLE,
        sum(one[measure].n for one in sites),
        statistics.fmean(one[measure].trained for one in sites),
        statistics.fmean(known) if len(known) == len(sites) else None,
    )
