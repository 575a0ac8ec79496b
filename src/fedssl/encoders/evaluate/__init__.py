"""Evaluation of a finished run, above the protocols: what was asked, on which images, and the course of it."""

from fedssl.encoders.evaluate.request import Request as Request
from fedssl.encoders.evaluate.run import evaluate as evaluate
