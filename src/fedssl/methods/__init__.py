"""The registry of methods: one file per method, one line here."""

from fedssl.core.registry import Registry
from fedssl.methods.base import SiameseMethod

METHODS: Registry[type[SiameseMethod]] = Registry(
    "methods",
    "method.name",
    {
        "simclr": "fedssl.methods.simclr:SimCLR",
        "mocov1": "fedssl.methods.mocov1:MoCoV1",
        "mocov2": "fedssl.methods.moco:MoCo",
        "simsiam": "fedssl.methods.simsiam:SimSiam",
        "byol": "fedssl.methods.byol:BYOL",
        "vicreg": "fedssl.methods.vicreg:VICReg",
        "barlow": "fedssl.methods.barlow:BarlowTwins",
        "align-uniform": "fedssl.methods.align_uniform:AlignUniform",
        "dino": "fedssl.methods.dino:DINO",
        "mae": "fedssl.methods.mae:MAE",
        "fedca": "fedssl.methods.fedca:FedCA",
        "ssd": "fedssl.methods.ssd:SSD",
        "fedx": "fedssl.methods.fedx:FedX",
        "fedsc": "fedssl.methods.fedsc:FedSC",
    },
    base=SiameseMethod,
)
