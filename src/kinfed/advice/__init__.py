"""Advice: the traits of a federation, the methods that suit it, their race, and what to use."""
