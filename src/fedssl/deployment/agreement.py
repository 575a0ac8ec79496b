"""A run in words, for the person at a site who has to approve it: what it does, and what will leave."""

from fedssl.core.errors import safe_text
from fedssl.deployment.consent import Consent, spelled
from fedssl.experiment.config.schema import Config
from fedssl.federation.client import WITH_NOISE
from fedssl.federation.privacy.mechanism import ClientDP

NUMBERS = "number of images, loss, divergence, mu, feature spread, seconds, images trained"


def in_words(consent: Consent, config: Config) -> str:
    """What `fedssl client approve` shows; `config` is made of the settings that the server sent."""
    training, sites = config.local_training, config.flower.clients
    lines = [
        f"run {consent.run}",
        f"  sites      {len(sites)}: {', '.join(sites)}",
        f"  training   {config.run.rounds} rounds, each {training.epochs} epochs over this site's images, "
        f"in batches of {training.batch_size}",
        f"  method     {config.method.name}, network {safe_text(config.network.name)}, "
        f"update rule {config.update_rule.name}, averaged by {config.aggregation.name}",
        f"  privacy    {_privacy(config.privacy.build())}",
        f"  server     {_server(config)}",
        "what will leave this site, in every round that it is drawn for:",
        *(f"  - {text}" for text in leaves(config)),
        "what never leaves: images, labels, file names, the target network, the state folder",
        "SHA-256 of the settings; the server prints the same, compare them on the phone:",
        f"  {spelled(consent.digest)}",
    ]
    return "\n".join(lines)


def leaves(config: Config) -> list[str]:
    """All that a site sends in a round, in words."""
    private = config.privacy.build()
    noisy = private is not None and private.at_clients
    kept = "" if config.uploads.shares_statistics else f" (without BatchNorm: {config.uploads.batchnorm})"
    change = ", shortened to clip_norm" if private else ""
    change += ", with noise from here" if noisy else ""
    change += ", masked: only the sum over the sites can be read" if config.uploads.secure else ""
    single = f"numbers: {', '.join(WITH_NOISE) if noisy else NUMBERS}"
    texts = [f"weights of the {config.uploads.upload} encoder and the predictor{kept}{change}"]
    texts += ["numbers: as part of that sum alone"] if config.uploads.secure else [single]
    if config.evaluation.at_sites:
        summed = ", as part of a sum over the sites" if config.uploads.secure else ""
        texts.append(f"if there are labels here: how many of this site's test images are classified correctly{summed}")
    if config.method.factory.leaves:
        texts.append(f"FEATURES: {config.method.factory.leaves}")
    return [*texts, "if it fails or refuses: a code"]


def _privacy(privacy: ClientDP | None) -> str:
    if privacy is None:
        return "no differential privacy"
    return (
        f"client-level differential privacy: clip_norm {privacy.clip_norm:g}, noise_multiplier "
        f"{privacy.noise_multiplier:g} ({privacy.placement})"
    )


def _server(config: Config) -> str:
    if config.uploads.secure:
        return "learns the sum over the sites, of this site alone nothing (aggregation.secure)"
    return "sees what this site sends"
