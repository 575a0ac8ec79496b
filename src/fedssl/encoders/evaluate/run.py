"""One evaluation: encoders x BatchNorm modes x protocols x seeds, each result written at once."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_args

import numpy as np
import torch

from fedssl import __version__
from fedssl.core.devices import choose_device
from fedssl.core.errors import FedsslError
from fedssl.core.files import Place
from fedssl.core.registry import AllowCode
from fedssl.encoders.evaluate.data import find_data
from fedssl.encoders.evaluate.request import EPOCHS, Request
from fedssl.evaluation.context import Context
from fedssl.evaluation.feature_cache import FeatureCache
from fedssl.evaluation.features import BatchNorm
from fedssl.evaluation.fine_tune import train_supervised
from fedssl.evaluation.fitting import Fitting
from fedssl.evaluation.protocols import PROTOCOLS, Protocol
from fedssl.evaluation.results import Result, describe, headline, merged
from fedssl.evaluation.score import Score
from fedssl.experiment.finished_run import FinishedRun
from fedssl.experiment.progress.views import QuietView, View
from fedssl.experiment.records.run_record import check_files
from fedssl.networks.heads import Encoder

SUPERVISED = Fitting(epochs=EPOCHS["supervised"], batch_size=128, lr=1e-3)


@dataclass(frozen=True)
class Subject:
    """An encoder to look at, loaded when its turn comes, and whose classes it is to be looked at with apart."""

    name: str
    load: Callable[[], Encoder]
    classes_of: tuple[int, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


def evaluate(path: Place, request: Request, view: View | None = None, allow_code: AllowCode = ()) -> list[Result]:
    """Evaluates the encoders of a run folder, appends every result to it and updates the headline in its summary.

    >>> for result in evaluate("runs/x", Request(protocols=["knn"], baselines=["random"], batchnorm="running")):
    ...     print(result.encoder, result.protocol, result.score.n)
    global knn 400
    random knn 400
    """
    run = FinishedRun.open(path, allow_code)
    check_files(run.folder.path, "evaluation.jsonl")  # now, not when the results are there
    if run.config.run.threads:
        torch.set_num_threads(run.config.run.threads)
    evaluation = _Evaluation(run, request, view or QuietView())
    results: list[Result] = []
    with evaluation.view:
        try:
            for result in evaluation.results():
                run.folder.append_evaluation(result.record())
                results.append(result)
        finally:  # also on Ctrl-C: what was computed is kept
            if results:
                summary = FinishedRun.open(path, allow_code).summary
                run.folder.write_evaluated(summary, merged(summary.get("evaluation", []), headline(results)))
    return results


class _Evaluation:
    """One evaluation; everything that can be refused is refused before the first feature."""

    def __init__(self, run: FinishedRun, request: Request, view: View) -> None:
        self.run, self.request, self.view = run, request, view
        self.device = choose_device(request.device)
        self.data_choice, self.data = find_data(run, request)
        self.protocols = {name: self._protocol(name) for name in dict.fromkeys(request.protocols)}
        self.seeds = range(run.config.run.seed, run.config.run.seed + request.seeds)
        self.cache = FeatureCache(run.folder.features) if request.cache else None
        self.subjects = list(self._subjects())
        for protocol in self.protocols.values():
            protocol.check(self.data)  # semi-supervised: refuses a run that saw these images

    def results(self) -> Iterator[Result]:
        pieces = sum(len(self._seeds(p)) * len(self._modes(p)) for p in self.protocols.values()) * len(self.subjects)
        self.view.begin("evaluation", pieces)
        for subject in self.subjects:
            encoder = subject.load().to(device=self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
            for batchnorm in get_args(BatchNorm):
                title = f"{subject.name}, BatchNorm {batchnorm}"
                context = Context(
                    encoder, self.data, batchnorm=batchnorm, cache=self.cache, progress=self.view.progress, title=title
                )
                for name, protocol in self.protocols.items():
                    if batchnorm in self._modes(protocol):
                        for seed in self._seeds(protocol):
                            yield from self._measure(subject, context, name, protocol, seed)

    def _measure(
        self, subject: Subject, context: Context, name: str, protocol: Protocol, seed: int
    ) -> Iterator[Result]:
        def progress(text: str, done: int, total: int | None, client: int | None = None, images: int = 0) -> None:
            self.view.progress(f"{context.title}: {text}, seed {seed}", done, total, client, images)

        predictions = protocol.predict(context, seed, progress)
        about = {
            "weights_sha256": context.weights_sha256,
            "data_settings": self.data_choice.settings,
            "fingerprints": self.data.fingerprints,
            "fedssl": __version__,
        }
        for test_images, chosen in self._scopes(subject):
            result = Result(
                encoder=subject.name,
                data=self.data.name,
                protocol=name,
                variant=self.request.variant,
                batchnorm=context.batchnorm,
                test_images=test_images,
                seed=seed if protocol.draws else None,
                score=Score.of(predictions.classes[chosen], self.data.test_labels[chosen]),
                settings=asdict(protocol),
                details=predictions.facts | subject.details | about,
            )
            self.view.say(describe(result))
            yield result
        self.view.advance()

    def _scopes(self, subject: Subject) -> Iterator[tuple[str, torch.Tensor]]:
        """The test images to count over: all, and those of the classes that a client holds."""
        labels = self.data.test_labels
        yield "all", torch.ones_like(labels, dtype=torch.bool)
        for client in subject.classes_of:
            of_training = self.run.dataset.train.labels
            assert of_training is not None
            held = torch.unique(of_training[torch.from_numpy(self.run.partition.clients[client])])
            chosen = torch.isin(labels, held)
            if chosen.any():
                yield f"classes of client {client}", chosen

    def _subjects(self) -> Iterator[Subject]:
        run, request = self.run, self.request
        shares = run.config.update_rule.factory.shares
        clients = tuple(run.client_rounds()) if request.clients or not shares else ()
        if not shares and not clients:
            raise FedsslError(f"{run.folder.path}: the run finished no round, its clients have no encoders")
        # Classes of another dataset are at no client, and of images without labels nobody knows whose they are.
        known = request.data is None and run.dataset.train.labels is not None
        own = clients if request.clients and known else ()
        if shares:
            encoder = run.global_encoder()  # a damaged file is refused now, not after the clients
            yield Subject("global", lambda: encoder, own)
        for k in clients:
            yield Subject(f"client {k}", lambda k=k: run.client_encoder(k), (k,) if own else ())  # type: ignore[misc]
        for name in dict.fromkeys(request.baselines):
            yield Subject(name, run.random_encoder) if name == "random" else self._supervised_subject(name)

    def _supervised_subject(self, name: str) -> Subject:
        if self.run.dataset.train.labels is None:
            raise FedsslError(f"{self.run.folder.path}: its images have no labels: leave out --baseline supervised")
        fitting = replace(SUPERVISED, epochs=self.request.epochs.get("supervised", SUPERVISED.epochs))
        return Subject(name, lambda: self._supervised(fitting), details={"supervised": asdict(fitting)})

    def _supervised(self, fitting: Fitting) -> Encoder:
        """The run's network from its initial weights, trained with the labels of the images that its clients hold."""
        encoder = self.run.random_encoder().to(device=self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        images, held = self.run.dataset.train, np.sort(np.concatenate(self.run.partition.clients))
        train_supervised(encoder, images, fitting, self.run.config.run.seed, self.view.progress, held)
        return encoder  # type: ignore[no-any-return]

    def _protocol(self, name: str) -> Protocol:
        protocol, settings = PROTOCOLS.typed(name)[self.request.variant], self.run.config.evaluation
        epochs = self.request.epochs.get(protocol.trains)
        return protocol.adapted(k=settings.k, temperature=settings.temperature, epochs=epochs)

    def _seeds(self, protocol: Protocol) -> range:
        return self.seeds if protocol.draws else self.seeds[:1]

    def _modes(self, protocol: Protocol) -> tuple[BatchNorm, ...]:
        chosen = self.request.batchnorm
        if chosen is None:
            chosen = "both" if protocol.frozen else "running"
            if not self.run.config.uploads.shares_statistics:
                chosen = "reestimated"
        return ("running", "reestimated") if chosen == "both" else (chosen,)
