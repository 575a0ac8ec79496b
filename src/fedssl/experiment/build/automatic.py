"""Settings that a config leaves ("auto") to the number of images, or to the weights that it starts from."""

import statistics
from collections.abc import Sequence

from fedssl.core.progress import Progress
from fedssl.experiment.build.data import build_dataset, build_partition
from fedssl.experiment.build.networks import input_of_start
from fedssl.experiment.config.schema import BY_WEIGHTS, Config, Raw
from fedssl.experiment.config.texts import flatten

IMAGES = 250_000  # to train on in all: ten minutes of two cores for the small network at 64 x 64
ROUNDS = (20, 200)
BATCHES = (64, 32, 16)
STEPS = 12  # that an epoch of the median client should have: the server averages after few of them
LR_PER_IMAGE = 0.1 / 64


def fitted(config: Config, progress: Progress) -> tuple[Config, str]:
    """The config with numbers where it says "auto", and in words what was chosen; "" when nothing was."""
    config, like = like_start(config)
    if not config.automatic:
        return config, like
    sizes = build_partition(config, build_dataset(config.data, progress)).sizes()
    chosen = chosen_values(sizes, config)
    text = ", ".join(f"{path} = {value:g}" for path, value in chosen.items())
    said = f"{like}; " if like else ""
    said += f"for {sum(sizes)} images at {len(sizes)} clients: {text} (set them to choose otherwise)"
    return config.with_chosen(chosen), said


def like_start(config: Config) -> tuple[Config, str]:
    """With the input of the weights to start from where the config leaves it to those, and in words."""
    left = [path for path in BY_WEIGHTS if path in config.automatic]
    if not left:
        return config, ""
    known, defaults = input_of_start(config), flatten(config.as_raw())
    theirs = {path: known[path] for path in left if path in known}
    others = {path: defaults[path] for path in left if path not in known and path in defaults}
    said = [
        f"{by}: {', '.join(f'{path} = {value}' for path, value in chosen.items())}"
        for by, chosen in (("as the weights to start from", theirs), ("no weights say otherwise", others))
        if chosen
    ]
    config = config.with_chosen({path: known.get(path, defaults.get(path)) for path in left})
    return config, f"{'; '.join(said)} (set them to choose otherwise)" if said else ""


def chosen_values(sizes: Sequence[int], config: Config) -> Raw:
    """What stands for "auto", by path: small batches where clients have few images, more rounds where all have few.

    A learning rate in proportion to the batch; so many rounds that `IMAGES` are trained on.
    """
    training, typical = config.local_training, statistics.median(sizes)
    batch = next((size for size in BATCHES if typical / size >= STEPS), BATCHES[-1])
    if "local_training.batch_size" not in config.automatic:
        batch = training.batch_size
    rounds = round(IMAGES / (sum(sizes) * training.epochs))
    values = {
        "rounds": min(max(rounds, ROUNDS[0]), ROUNDS[1]),
        "local_training.batch_size": batch,
        "local_training.lr": batch * LR_PER_IMAGE,
    }
    return {path: value for path, value in values.items() if path in config.automatic}
