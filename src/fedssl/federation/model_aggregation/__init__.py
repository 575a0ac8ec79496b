"""Operation 3, model aggregation: one file per aggregator, one line here."""

from fedssl.core.registry import Registry
from fedssl.federation.model_aggregation.base import Aggregator

AGGREGATORS: Registry[type[Aggregator]] = Registry(
    "aggregators",
    "aggregation.name",
    {
        "weighted-average": "fedssl.federation.model_aggregation.weighted_average:WeightedAverage",
        "clipped-average": "fedssl.federation.model_aggregation.clipped_average:ClippedAverage",
        "median": "fedssl.federation.model_aggregation.median:Median",
        "trimmed-mean": "fedssl.federation.model_aggregation.trimmed_mean:TrimmedMean",
        "krum": "fedssl.federation.model_aggregation.krum:Krum",
        "l-dawa": "fedssl.federation.model_aggregation.l_dawa:LDAWA",
        "fedu2": "fedssl.federation.model_aggregation.fedu2:FedU2",
        "fedavgm": "fedssl.federation.model_aggregation.server_optimizers:FedAvgM",
        "fedadam": "fedssl.federation.model_aggregation.server_optimizers:FedAdam",
    },
    base=Aggregator,
)
