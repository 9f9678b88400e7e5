"""Advice: the traits of a federation, the methods that suit it, their race, and what to use."""

from kinfed.advice.advise import Advice, advise
from kinfed.advice.candidates import Candidate, able, candidates
from kinfed.advice.traits import Excess, Traits, traits

__all__ = ["Advice", "Candidate", "Excess", "Traits", "able", "advise", "candidates", "traits"]
