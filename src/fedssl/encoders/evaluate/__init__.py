"""Evaluation of a finished run, above the protocols: the request, its images, and the run over both."""

from fedssl.encoders.evaluate.request import Request as Request
from fedssl.encoders.evaluate.run import evaluate as evaluate
