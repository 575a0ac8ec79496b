"""Evaluation of a finished run, above the protocols: what was asked, on which images, and the course of it."""

from fedssl.evaluate.course import evaluate as evaluate
from fedssl.evaluate.request import Request as Request
